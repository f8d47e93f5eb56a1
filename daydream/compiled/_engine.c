/* The loops that Python pays most for, in C: see daydream/compiled/__init__.py, which says what each returns.

   Every function checks the sizes of its buffers, and every number that it uses as an index before it
   does. Sums are unsigned, so that none is undefined. */

#include "_plan.h"

enum { BEYOND = 61 }; /* no sum of times may need more bits */

/* Each task starts with the latest of its release, its lane's progress and its causes. `total` bounds every
   sum that an engine can form of these costs; `high` collects its bits, and is looked at in the end. What does
   not change stands in names of its own, and an index is unsigned, so that one comparison sees both ends. */
ALWAYS_INLINE int pull_tasks(const Plan *plan, int64_t *restrict progress, int64_t *restrict start,
                             int64_t *restrict end) {
    const int32_t *const lane_of = plan->lane, *const edge_src = plan->edge_src;
    const int64_t *const duration_ns = plan->duration, *const gap_ns = plan->gap, *const release_ns = plan->release;
    const int64_t *const edge_ptr = plan->edge_ptr, *const latency_ns = plan->latency;
    const uint8_t *const from_start = plan->from_start;
    const uint64_t tasks = (uint64_t)plan->tasks, edges = (uint64_t)plan->edges, lanes = (uint64_t)plan->lanes;
    uint64_t total = 0, high = 0, edge = 0;
    if (edge_ptr[0] != 0) return WRONG;
    for (uint64_t i = 0; i < tasks; ++i) {
        const uint64_t lane = (uint64_t)(int64_t)lane_of[i], stop = (uint64_t)edge_ptr[i + 1];
        if (lane >= lanes || stop < edge || stop > edges) return WRONG;
        const int64_t duration = duration_ns[i], gap = gap_ns[i], release = release_ns[i];
        int64_t at = release > progress[lane] ? release : progress[lane];
        for (; edge < stop; ++edge) {
            const uint64_t src = (uint64_t)(int64_t)edge_src[edge];
            if (src >= i) return WRONG;
            const int64_t *const times = from_start[edge] ? start : end;
            const int64_t latency = latency_ns[edge], ready = add(times[src], latency);
            at = ready > at ? ready : at;
            total += magnitude(latency);
            high |= total;
        }
        /* Costs below 2**61, as `high` tells of each, do not pass beyond its bits in one step. */
        total += (uint64_t)duration + (uint64_t)gap;
        high |= (uint64_t)(release | duration | gap) | total;
        start[i] = at;
        end[i] = add(at, duration);
        progress[lane] = add(end[i], gap);
    }
    if (edge != edges) return WRONG;
    return high >> BEYOND ? TOO_LONG : DONE;
}

static int pull_anywhere(const Plan *plan, int64_t *progress, int64_t *start, int64_t *end) {
    return pull_tasks(plan, progress, start, end);
}

#ifdef SEVERAL_X86
AVX512 static int pull_avx512(const Plan *plan, int64_t *progress, int64_t *start, int64_t *end) {
    return pull_tasks(plan, progress, start, end); /* it has a maximum of 64-bit integers */
}
#endif

static int pull_here(const Plan *plan, int64_t *progress, int64_t *start, int64_t *end) {
#ifdef SEVERAL_X86
    if (has_avx512()) return pull_avx512(plan, progress, start, end);
#endif
    return pull_anywhere(plan, progress, start, end);
}

static PyObject *pull(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer b[11];
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*w*w*w*:pull", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6],
                          &b[7], &b[8], &b[9], &b[10]))
        return NULL;
    const int64_t n = b[0].len / 4, edges = b[5].len / 4;
    if (holds(&b[0], "lane", n, 4) && holds(&b[1], "duration_ns", n, 8) && holds(&b[2], "gap_ns", n, 8) &&
        holds(&b[3], "release_ns", n, 8) && holds(&b[4], "edge_ptr", n + 1, 8) &&
        holds(&b[5], "edge_src", edges, 4) && holds(&b[6], "edge_latency_ns", edges, 8) &&
        holds(&b[7], "edge_from_start", edges, 1) && holds(&b[8], "progress", b[8].len / 8, 8) &&
        holds(&b[9], "start", n, 8) && holds(&b[10], "end", n, 8)) {
        const Plan plan = {.lane = b[0].buf,       .edge_src = b[5].buf, .duration = b[1].buf,
                           .gap = b[2].buf,        .release = b[3].buf,  .edge_ptr = b[4].buf,
                           .latency = b[6].buf,    .from_start = b[7].buf, .tasks = n,
                           .edges = edges,         .lanes = b[8].len / 8};
        int found;
        memset(b[8].buf, 0, (size_t)b[8].len);
        Py_BEGIN_ALLOW_THREADS
        found = pull_here(&plan, b[8].buf, b[9].buf, b[10].buf);
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

/* As `nearest` of daydream/collect/derive/nesting.py. A parent nearly always stands before its rows, and has its
   own answer by then. */
static int find_nearest(const uint8_t *flags, const int32_t *parent, int32_t *found, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
        int64_t row = i, climbed = 0;
        while (!flags[row]) {
            row = parent[row];
            if (row < 0) break;
            if (row >= rows || ++climbed > rows) return WRONG; /* the second is a circle */
            if (row < i) {
                row = found[row];
                break;
            }
        }
        found[i] = row < 0 ? -1 : (int32_t)row;
    }
    return DONE;
}

static PyObject *nearest(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer b[3];
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(args, "y*y*w*:nearest", &b[0], &b[1], &b[2])) return NULL;
    const int64_t rows = b[0].len;
    if (holds(&b[1], "parent", rows, 4) && holds(&b[2], "found", rows, 4)) {
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = find_nearest(b[0].buf, b[1].buf, b[2].buf, rows);
        Py_END_ALLOW_THREADS
        if (done == DONE)
            answer = Py_NewRef(Py_None);
        else
            PyErr_SetString(PyExc_ValueError, "a parent is out of range, or in a circle");
    }
    release_all(b, 3);
    return answer;
}

static PyMethodDef methods[] = {
    {"pull", pull, METH_VARARGS, "pull(lane, ..., end): fill start and end; False where times are too long."},
    {"walk", daydream_walk, METH_VARARGS, "walk(lane, ..., sink, since): fill path and by; return the path's length."},
    {"pull_many", daydream_pull_many, METH_VARARGS, "pull_many(lane, ..., out, lanes): fill in the ends of each variant."},
    {"nest", nest, METH_VARARGS, "nest(order, ..., rounding): fill parent, cut end; return the crossings."},
    {"nearest", nearest, METH_VARARGS, "nearest(flags, parent, found): fill in the nearest flagged rows."},
    {"cut", daydream_cut, METH_VARARGS, "cut(order, ..., gap): fill in the stretches; return how many, or -1."},
    {"scan", daydream_scan, METH_VARARGS, "scan(names, ..., slots, exact): fill rows and spans; None if it refuses."},
    {"by_kind", daydream_by_kind, METH_VARARGS, "by_kind(rows, ..., fields): fill the columns of a table."},
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *module) {
    /* Whoever calls a function of another number takes or gives other arguments. */
    return PyModule_AddIntConstant(module, "INTERFACE", 5);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)set_up}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_engine", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__engine(void) { return PyModuleDef_Init(&definition); }
