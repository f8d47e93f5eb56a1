/* What the compiled loops share: a plan, checked buffers, sums that are never undefined. */

#ifndef DAYDREAM_PLAN_H
#define DAYDREAM_PLAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE static inline
#endif
#if defined(__GNUC__) && defined(__x86_64__)
/* A loop is compiled for several sorts of x86: the one for the processor that runs it is taken. */
#define SEVERAL_X86
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq")))
static inline int has_avx2(void) { return __builtin_cpu_supports("avx2"); }
static inline int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

enum { DONE, TOO_LONG, WRONG, NO_ROOM }; /* what a loop found */

typedef struct {
    const int32_t *lane, *edge_src;
    const int64_t *duration, *gap, *release, *edge_ptr, *latency;
    const uint8_t *from_start;
    int64_t tasks, edges, lanes;
} Plan;

static inline int64_t add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

static inline uint64_t magnitude(int64_t a) { return a < 0 ? 0 - (uint64_t)a : (uint64_t)a; }

/* Sets an error and returns 0 unless a buffer holds `count` items of `size` bytes, each in its place. */
static inline int holds(const Py_buffer *buffer, const char *name, int64_t count, int64_t size) {
    if (buffer->len % size == 0 && buffer->len / size == count && (uintptr_t)buffer->buf % (uintptr_t)size == 0)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes; %lld aligned items of %lld bytes are needed", name,
                 buffer->len, (long long)count, (long long)size);
    return 0;
}

static inline void release_all(Py_buffer *buffers, int count) {
    for (int i = 0; i < count; ++i) PyBuffer_Release(&buffers[i]);
}

/* In _scan.c, _stretches.c, _table.c and _variants.c. */
PyObject *daydream_cut(PyObject *module, PyObject *args);
PyObject *daydream_walk(PyObject *module, PyObject *args);
PyObject *daydream_pull_many(PyObject *module, PyObject *args);
PyObject *daydream_scan(PyObject *module, PyObject *args);
PyObject *daydream_by_kind(PyObject *module, PyObject *args);

#endif
