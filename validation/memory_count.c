/* How much of what a process got from posix_memalign it holds: loaded before libc, asked through ctypes.

   torch's allocator for CPUs (c10, a library of its own) takes all its memory there, as oneDNN does for its own.
   So this counts without torch's profiler, on every thread, to the byte. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define SLOTS ((size_t)1 << 22)
enum { TORCH, ALL, COUNTERS };

static struct { uintptr_t at; size_t size; int torch; } slot[SLOTS]; /* open addressing; at 0 is empty */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t held[COUNTERS], most[COUNTERS];

int64_t counted_held(int which) { return held[which]; }
int64_t counted_most(int which) { return most[which]; }
void counted_restart(void) { memcpy(most, held, sizeof most); }

static size_t home(uintptr_t at) { return (size_t)(at * 0x9E3779B97F4A7C15u >> 42) & (SLOTS - 1); }
static size_t next(size_t i) { return (i + 1) & (SLOTS - 1); }

static void count(int counter, int64_t size)
{
    held[counter] += size;
    if (held[counter] > most[counter]) most[counter] = held[counter];
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    static int (*real)(void **, size_t, size_t);
    if (!real) real = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    int failed = real(out, alignment, size);
    if (failed || !*out) return failed;
    Dl_info caller;
    int known = dladdr(__builtin_return_address(0), &caller) && caller.dli_fname;
    int torch = known && strstr(caller.dli_fname, "libc10.") != NULL;
    pthread_mutex_lock(&lock);
    size_t i = home((uintptr_t)*out);
    while (slot[i].at) i = next(i);
    slot[i].at = (uintptr_t)*out;
    slot[i].size = size;
    slot[i].torch = torch;
    if (torch) count(TORCH, (int64_t)size);
    count(ALL, (int64_t)size);
    pthread_mutex_unlock(&lock);
    return 0;
}

void free(void *pointer)
{
    static void (*real)(void *);
    if (!real) real = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    if (pointer) {
        pthread_mutex_lock(&lock);
        size_t i = home((uintptr_t)pointer);
        while (slot[i].at && slot[i].at != (uintptr_t)pointer) i = next(i);
        if (slot[i].at) {
            if (slot[i].torch) held[TORCH] -= (int64_t)slot[i].size;
            held[ALL] -= (int64_t)slot[i].size;
            /* The hole takes what comes later in the run and would not be found any more. */
            for (size_t j = next(i); slot[j].at; j = next(j))
                if (((j - home(slot[j].at)) & (SLOTS - 1)) >= ((j - i) & (SLOTS - 1))) {
                    slot[i] = slot[j];
                    i = j;
                }
            slot[i].at = 0;
        }
        pthread_mutex_unlock(&lock);
    }
    real(pointer);
}
