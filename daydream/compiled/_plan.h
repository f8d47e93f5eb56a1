/* What the compiled loops share: checked buffers, and sums that are never undefined. */

#ifndef DAYDREAM_PLAN_H
#define DAYDREAM_PLAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { DONE, TOO_LONG, WRONG }; /* what a loop found */

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

#endif
