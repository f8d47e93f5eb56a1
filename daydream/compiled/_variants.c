/* Critical paths, and many variants of one plan at once: see daydream/compiled/__init__.py. As in _engine.c
   every size and index is checked before it is used. */

#include "_plan.h"
#include <stdlib.h>

/* As `critical_path` of daydream/simulate/critical_path.py: from the sink back to what bound each start.
   `before` is room for the task before each on its lane, `last` for one a lane. Returns how many tasks the
   path has, or -1 for an index out of range; last to first. */
static int64_t walk_back(const Plan *plan, const int8_t *cause, const int64_t *start, const int64_t *end,
                         int64_t sink, int64_t since, int32_t *before, int32_t *last, int32_t *path, int64_t *by) {
    int64_t length = 0;
    for (int64_t lane = 0; lane < plan->lanes; ++lane) last[lane] = -1;
    for (int64_t i = 0; i <= sink; ++i) {
        const int32_t lane = plan->lane[i];
        if (lane < 0 || lane >= plan->lanes) return -1;
        before[i] = last[lane];
        last[lane] = (int32_t)i;
    }
    for (int64_t task = sink;;) {
        const int64_t from = plan->edge_ptr[task], stop = plan->edge_ptr[task + 1], begin = start[task];
        int64_t bound = -1;
        if (from < 0 || stop < from || stop > plan->edges) return -1;
        for (int64_t e = from; e < stop && begin > since; ++e) {
            const int64_t src = plan->edge_src[e];
            if (src < 0 || src >= task) return -1;
            if (add(plan->from_start[e] ? start[src] : end[src], plan->latency[e]) != begin) continue;
            if (bound < 0 || cause[e] < cause[bound] ||
                (cause[e] == cause[bound] && src < plan->edge_src[bound]))
                bound = e;
        }
        path[length] = (int32_t)task;
        by[length++] = bound;
        if (bound >= 0) {
            task = plan->edge_src[bound];
            continue;
        }
        const int32_t ahead = before[task];
        if (ahead < 0 || begin <= since || add(end[ahead], plan->gap[ahead]) != begin) return length;
        task = ahead;
    }
}

PyObject *daydream_walk(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer b[13];
    long long sink, since;
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*w*w*w*w*LL:walk", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5],
                          &b[6], &b[7], &b[8], &b[9], &b[10], &b[11], &b[12], &sink, &since))
        return NULL;
    const int64_t n = b[0].len / 4, edges = b[3].len / 4;
    if (holds(&b[0], "lane", n, 4) && holds(&b[1], "gap_ns", n, 8) && holds(&b[2], "edge_ptr", n + 1, 8) &&
        holds(&b[3], "edge_src", edges, 4) && holds(&b[4], "edge_latency_ns", edges, 8) &&
        holds(&b[5], "edge_from_start", edges, 1) && holds(&b[6], "edge_cause", edges, 1) &&
        holds(&b[7], "start", n, 8) && holds(&b[8], "end", n, 8) && holds(&b[9], "before", n, 4) &&
        holds(&b[10], "last", b[10].len / 4, 4) && holds(&b[11], "path", n, 4) && holds(&b[12], "by", n, 8)) {
        const Plan plan = {.lane = b[0].buf,    .edge_src = b[3].buf,   .gap = b[1].buf, .edge_ptr = b[2].buf,
                           .latency = b[4].buf, .from_start = b[5].buf, .tasks = n,      .edges = edges,
                           .lanes = b[10].len / 4};
        int64_t found = -1;
        Py_BEGIN_ALLOW_THREADS
        if (sink >= 0 && sink < n)
            found = walk_back(&plan, b[6].buf, b[7].buf, b[8].buf, sink, since, b[9].buf, b[10].buf, b[11].buf,
                              b[12].buf);
        Py_END_ALLOW_THREADS
        if (found < 0)
            PyErr_SetString(PyExc_ValueError, "an index of the plan is out of its range");
        else
            answer = PyLong_FromLongLong(found);
    }
    release_all(b, 13);
    return answer;
}

/* Variants of one plan side by side: group g is the variants first[g] to first[g + 1], which multiply the
   costs of its tasks, those with bit g in `slower` (gaps: in `wider`), by their `factor`. Times are whole
   numbers in doubles, exact where every sum is below 2**53, which the caller sees to. */
typedef struct {
    const uint16_t *slower, *wider;
    const int64_t *first;
    const double *factor;
    int64_t groups, count; /* of variants */
} Variants;

enum { FEW = 8, MANY = 64 }; /* variants that a pass has room for: known to the compiler, it keeps them in registers */

static void scale(double *cost, int64_t width, int64_t ns, unsigned bits, const Variants *v) {
    for (int64_t k = 0; k < width; ++k) cost[k] = (double)ns;
    for (int64_t g = 0; bits; ++g, bits >>= 1)
        for (int64_t k = bits & 1 ? v->first[g] : v->first[g + 1]; k < v->first[g + 1]; ++k)
            cost[k] = (double)(int64_t)((double)ns * v->factor[k] + 0.5);
}

/* Times of tasks that are waited for: a start and an end a variant, in a slot. The next task takes it when the
   last has asked. */
typedef struct {
    double *times, *lanes; /* `lanes` is the progress of each */
    int32_t *idle;         /* slots that nobody needs any more */
    int64_t room, taken, idles;
} Kept;

static int make_room(Kept *kept, int64_t width) {
    const int64_t room = kept->room ? 2 * kept->room : 256;
    double *times = realloc(kept->times, (size_t)(room * 2 * width) * sizeof(double));
    if (times) kept->times = times;
    int32_t *idle = realloc(kept->idle, (size_t)room * sizeof(int32_t));
    if (idle) kept->idle = idle;
    if (times && idle) kept->room = room;
    return times && idle;
}

/* `uses` counts who asks for a task's times, `slot` is room for a number a task, `seen` says where an end is
   written to in `out`. */
ALWAYS_INLINE int pull_variants(const int64_t width, const Plan *plan, const Variants *v, Kept *kept, int32_t *uses,
                                int32_t *slot, const int32_t *seen, double *out, int64_t most) {
    double at[MANY], end[MANY], cost[MANY];
    int64_t edge = 0;
    for (int64_t i = 0; i < plan->tasks; ++i) {
        const int64_t lane = plan->lane[i], stop = plan->edge_ptr[i + 1];
        if (lane < 0 || lane >= plan->lanes || stop < edge || stop > plan->edges || seen[i] >= most) return WRONG;
        double *progress = kept->lanes + lane * width;
        const double released = (double)plan->release[i];
        for (int64_t k = 0; k < width; ++k) at[k] = released > progress[k] ? released : progress[k];
        for (; edge < stop; ++edge) {
            const int64_t src = plan->edge_src[edge];
            if (src < 0 || src >= i || uses[src] <= 0) return WRONG;
            const double *times = kept->times + (int64_t)slot[src] * 2 * width + (plan->from_start[edge] ? 0 : width);
            const double latency = (double)plan->latency[edge];
            for (int64_t k = 0; k < width; ++k) {
                const double ready = times[k] + latency;
                at[k] = ready > at[k] ? ready : at[k];
            }
            if (!--uses[src]) kept->idle[kept->idles++] = slot[src];
        }
        if (v->slower[i]) {
            scale(cost, width, plan->duration[i], v->slower[i], v);
            for (int64_t k = 0; k < width; ++k) end[k] = at[k] + cost[k];
        } else {
            const double duration = (double)plan->duration[i];
            for (int64_t k = 0; k < width; ++k) end[k] = at[k] + duration;
        }
        if (v->wider[i]) {
            scale(cost, width, plan->gap[i], v->wider[i], v);
            for (int64_t k = 0; k < width; ++k) progress[k] = end[k] + cost[k];
        } else {
            const double gap = (double)plan->gap[i];
            for (int64_t k = 0; k < width; ++k) progress[k] = end[k] + gap;
        }
        if (seen[i] >= 0) memcpy(out + (int64_t)seen[i] * v->count, end, (size_t)v->count * sizeof(double));
        if (uses[i] > 0) {
            if (!kept->idles && kept->taken == kept->room && !make_room(kept, width)) return NO_ROOM;
            slot[i] = kept->idles ? kept->idle[--kept->idles] : (int32_t)kept->taken++;
            double *times = kept->times + (int64_t)slot[i] * 2 * width;
            for (int64_t k = 0; k < width; ++k) times[k] = at[k];
            for (int64_t k = 0; k < width; ++k) times[width + k] = end[k];
        }
    }
    return edge == plan->edges ? DONE : WRONG;
}

#define PULLS(name, target)                                                                                          \
    target static int name(const Plan *plan, const Variants *v, Kept *kept, int32_t *uses, int32_t *slot,             \
                           const int32_t *seen, double *out, int64_t most) {                                         \
        return v->count <= FEW ? pull_variants(FEW, plan, v, kept, uses, slot, seen, out, most)                      \
                               : pull_variants(MANY, plan, v, kept, uses, slot, seen, out, most);                    \
    }
PULLS(pull_anywhere, )
#ifdef SEVERAL_X86
PULLS(pull_avx2, AVX2)
PULLS(pull_avx512, AVX512)
#endif

static int pull_here(const Plan *plan, const Variants *v, int32_t *uses, int32_t *slot, const int32_t *seen,
                     double *out, int64_t most) {
    const int64_t width = v->count <= FEW ? FEW : MANY;
    Kept kept = {.lanes = calloc((size_t)((plan->lanes + 1) * width), sizeof(double))};
    int found = NO_ROOM;
    if (kept.lanes && make_room(&kept, width)) {
#ifdef SEVERAL_X86
        if (has_avx512())
            found = pull_avx512(plan, v, &kept, uses, slot, seen, out, most);
        else if (has_avx2())
            found = pull_avx2(plan, v, &kept, uses, slot, seen, out, most);
        else
#endif
            found = pull_anywhere(plan, v, &kept, uses, slot, seen, out, most);
    }
    free(kept.times);
    free(kept.idle);
    free(kept.lanes);
    return found;
}

PyObject *daydream_pull_many(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer b[16];
    Py_ssize_t lanes;
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*y*y*y*w*w*y*w*n:pull_many", &b[0], &b[1], &b[2], &b[3], &b[4],
                          &b[5], &b[6], &b[7], &b[8], &b[9], &b[10], &b[11], &b[12], &b[13], &b[14], &b[15], &lanes))
        return NULL;
    const int64_t n = b[0].len / 4, edges = b[5].len / 4, groups = b[10].len / 8 - 1, count = b[11].len / 8;
    const int64_t most = count > 0 ? b[15].len / 8 / count : 0;
    if (holds(&b[0], "lane", n, 4) && holds(&b[1], "duration_ns", n, 8) && holds(&b[2], "gap_ns", n, 8) &&
        holds(&b[3], "release_ns", n, 8) && holds(&b[4], "edge_ptr", n + 1, 8) &&
        holds(&b[5], "edge_src", edges, 4) && holds(&b[6], "edge_latency_ns", edges, 8) &&
        holds(&b[7], "edge_from_start", edges, 1) && holds(&b[8], "slower", n, 2) && holds(&b[9], "wider", n, 2) &&
        holds(&b[10], "first", groups + 1, 8) && holds(&b[11], "factor", count, 8) && holds(&b[12], "uses", n, 4) &&
        holds(&b[13], "slot", n, 4) && holds(&b[14], "seen", n, 4) && holds(&b[15], "out", most * count, 8)) {
        const Plan plan = {.lane = b[0].buf,       .edge_src = b[5].buf, .duration = b[1].buf,
                           .gap = b[2].buf,        .release = b[3].buf,  .edge_ptr = b[4].buf,
                           .latency = b[6].buf,    .from_start = b[7].buf, .tasks = n,
                           .edges = edges,         .lanes = lanes};
        const Variants variants = {b[8].buf, b[9].buf, b[10].buf, b[11].buf, groups, count};
        int found = groups >= 1 && groups <= 16 && count >= 1 && count <= MANY && lanes >= 0 && plan.edge_ptr[0] == 0 ? DONE : WRONG;
        for (int64_t g = 0; found == DONE && g < groups; ++g)
            if (variants.first[g] < 0 || variants.first[g] > variants.first[g + 1] || variants.first[g + 1] > count)
                found = WRONG;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t i = 0; found == DONE && i < n; ++i)
            if ((variants.slower[i] | variants.wider[i]) >> groups) found = WRONG;
        if (found == DONE) found = pull_here(&plan, &variants, b[12].buf, b[13].buf, b[14].buf, b[15].buf, most);
        Py_END_ALLOW_THREADS
        if (found == NO_ROOM)
            PyErr_NoMemory();
        else if (found == WRONG)
            PyErr_SetString(PyExc_ValueError, "an index of the plan is out of its range");
        else
            answer = Py_NewRef(Py_None);
    }
    release_all(b, 16);
    return answer;
}
