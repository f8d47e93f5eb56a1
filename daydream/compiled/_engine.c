/* The loops that Python pays most for, in C: see daydream/compiled/__init__.py, which says what each returns.

   Every function checks the sizes of its buffers, and every number that it uses as an index before it
   does. Sums are unsigned, so that none is undefined. */

#include "_plan.h"

enum { BEYOND = 61 }; /* no sum of times may need more bits */

/* Each task starts with the latest of its release, its lane's progress and its causes. `total` bounds every
   sum that an engine can form of these costs; `high` collects its bits. An index is unsigned, so that one
   comparison checks both ends. */
static int pull_tasks(const Py_buffer *b, uint64_t tasks, uint64_t edges, uint64_t lanes) {
    const int32_t *const lane_of = b[0].buf, *const edge_src = b[5].buf;
    const int64_t *const duration_ns = b[1].buf, *const gap_ns = b[2].buf, *const release_ns = b[3].buf;
    const int64_t *const edge_ptr = b[4].buf, *const latency_ns = b[6].buf;
    const uint8_t *const from_start = b[7].buf;
    int64_t *restrict const progress = b[8].buf, *restrict const start = b[9].buf, *restrict const end = b[10].buf;
    uint64_t total = 0, high = 0, edge = 0;
    if (edge_ptr[0] != 0) return WRONG;
    memset(progress, 0, lanes * sizeof *progress);
    for (uint64_t i = 0; i < tasks; ++i) {
        const uint64_t lane = (uint64_t)(int64_t)lane_of[i], stop = (uint64_t)edge_ptr[i + 1];
        if (lane >= lanes || stop < edge || stop > edges) return WRONG;
        const int64_t duration = duration_ns[i], gap = gap_ns[i], release = release_ns[i];
        int64_t at = release > progress[lane] ? release : progress[lane];
        for (; edge < stop; ++edge) {
            const uint64_t src = (uint64_t)(int64_t)edge_src[edge];
            if (src >= i) return WRONG;
            const int64_t ready = add((from_start[edge] ? start : end)[src], latency_ns[edge]);
            at = ready > at ? ready : at;
            total += magnitude(latency_ns[edge]);
            high |= total;
        }
        /* Costs below 2**61, which `high` checks of each, do not pass beyond its bits in one step. */
        total += (uint64_t)duration + (uint64_t)gap;
        high |= (uint64_t)(release | duration | gap) | total;
        start[i] = at;
        end[i] = add(at, duration);
        progress[lane] = add(end[i], gap);
    }
    return edge != edges ? WRONG : high >> BEYOND ? TOO_LONG : DONE;
}

static PyObject *pull(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer b[11];
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*w*w*w*:pull", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6],
                          &b[7], &b[8], &b[9], &b[10]))
        return NULL;
    const int64_t n = b[0].len / 4, edges = b[5].len / 4, lanes = b[8].len / 8;
    if (holds(&b[0], "lane", n, 4) && holds(&b[1], "duration_ns", n, 8) && holds(&b[2], "gap_ns", n, 8) &&
        holds(&b[3], "release_ns", n, 8) && holds(&b[4], "edge_ptr", n + 1, 8) && holds(&b[5], "edge_src", edges, 4) &&
        holds(&b[6], "edge_latency_ns", edges, 8) && holds(&b[7], "edge_from_start", edges, 1) &&
        holds(&b[8], "progress", lanes, 8) && holds(&b[9], "start", n, 8) && holds(&b[10], "end", n, 8)) {
        int found;
        Py_BEGIN_ALLOW_THREADS
        found = pull_tasks(b, (uint64_t)n, (uint64_t)edges, (uint64_t)lanes);
        Py_END_ALLOW_THREADS
        if (found == WRONG)
            PyErr_SetString(PyExc_ValueError, "an index of the plan is out of its range");
        else
            answer = PyBool_FromLong(found == DONE);
    }
    release_all(b, 11);
    return answer;
}

enum { OPERATOR = 1, RUNTIME = 2, ANNOTATION = 0 }; /* levels, outer to inner */

/* As `_nest_threads` of daydream/collect/derive/nesting.py; `open` holds the rows that enclose the present
   one. Returns the crossings, or -1 for a row that is none. */
static int64_t nest_rows(const int32_t *order, int64_t count, int64_t rows, const int64_t *start, int64_t *end,
                         const int8_t *depth, const int32_t *thread, int32_t *parent, int32_t *open,
                         int64_t rounding) {
    int64_t crossings = 0, top = 0; /* how many are open */
    int32_t lane = -1;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t row = order[i];
        if (row < 0 || row >= rows) return -1;
        const int64_t at = start[row], until = end[row];
        const int8_t level = depth[row];
        int64_t stop = until;
        if (thread[row] != lane) {
            lane = thread[row];
            top = 0;
        }
        while (top) { /* leave what is over; both may last no time: a call too short for the clock */
            const int32_t last = open[top - 1];
            if (end[last] > at) break;
            if (end[last] == at && at == stop && at == start[last] && depth[last] < level) break;
            --top;
        }
        while (top) {
            const int32_t last = open[top - 1];
            const int64_t outer = end[last];
            const int in_call = depth[last] == RUNTIME && level != RUNTIME;
            const int far = stop > outer && (uint64_t)stop - (uint64_t)outer > (uint64_t)rounding;
            if (in_call || (far && depth[last] == ANNOTATION && level != ANNOTATION)) {
                crossings += !in_call || (outer > at && (uint64_t)outer - (uint64_t)at > (uint64_t)rounding);
                end[last] = at;
                --top;
                continue;
            }
            if (stop > outer) {
                crossings += far;
                stop = outer;
            }
            break;
        }
        parent[row] = top ? open[top - 1] : -1;
        end[row] = stop;
        open[top++] = row;
    }
    return crossings;
}

static PyObject *nest(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer b[7];
    long long rounding;
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(args, "y*y*w*y*y*w*w*L:nest", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6], &rounding))
        return NULL;
    const int64_t count = b[0].len / 4, rows = b[3].len;
    if (holds(&b[0], "order", count, 4) && holds(&b[1], "start", rows, 8) && holds(&b[2], "end", rows, 8) &&
        holds(&b[4], "thread", rows, 4) && holds(&b[5], "parent", rows, 4) && holds(&b[6], "open", count, 4)) {
        int64_t found;
        Py_BEGIN_ALLOW_THREADS
        found = nest_rows(b[0].buf, count, rows, b[1].buf, b[2].buf, b[3].buf, b[4].buf, b[5].buf, b[6].buf,
                          rounding);
        Py_END_ALLOW_THREADS
        if (found < 0)
            PyErr_SetString(PyExc_ValueError, "a row to be nested is out of range");
        else
            answer = PyLong_FromLongLong(found);
    }
    release_all(b, 7);
    return answer;
}

static PyMethodDef methods[] = {
    {"pull", pull, METH_VARARGS, "pull(lane, ..., end): fill start and end; False where times are too long."},
    {"nest", nest, METH_VARARGS, "nest(order, ..., rounding): fill parent, cut end; return the crossings."},
    {NULL, NULL, 0, NULL},
};

/* Functions of another number take or give other arguments. */
static int set_up(PyObject *module) { return PyModule_AddIntConstant(module, "INTERFACE", 7); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)set_up}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_engine", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__engine(void) { return PyModuleDef_Init(&definition); }
