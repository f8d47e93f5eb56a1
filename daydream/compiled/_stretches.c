/* CPU time cut into stretches: see daydream/compiled/__init__.py. As in _engine.c every size and index is
   checked before it is used. */

#include "_plan.h"

typedef struct {
    int32_t *owner, *lane, *turn;
    int64_t *start, *end, *gap, count, room;
} Stretches;

/* Appends a stretch of a row, or adds to the gap behind the last one where no row is open. */
static int append(Stretches *out, int32_t owner, int32_t lane, int64_t start, int64_t end) {
    const int64_t at = out->count;
    if (owner < 0) {
        if (at == 0) return 0;
        out->gap[at - 1] = add(out->gap[at - 1], add(end, (int64_t)(0 - (uint64_t)start)));
        return 1;
    }
    if (at >= out->room) return 0;
    const int again = at > 0 && out->start[at - 1] == start && out->lane[at - 1] == lane;
    out->turn[at] = again ? out->turn[at - 1] + 1 : 0;
    out->owner[at] = owner;
    out->lane[at] = lane;
    out->start[at] = start;
    out->end[at] = end;
    out->gap[at] = 0;
    out->count = at + 1;
    return 1;
}

/* As `_stretches` of daydream/graph/rules/threads.py, for rows in the order of lane and start. `open` holds the
   rows that enclose the present one. Returns how many stretches there are, -1 where the rows are not as the
   column `parent` says, and -2 for an index out of range. */
static int64_t cut_rows(const int32_t *order, const int32_t *lane, int64_t count, int64_t rows,
                        const int64_t *start, const int64_t *duration, const int32_t *parent, int32_t *open,
                        Stretches *out) {
    int64_t top = 0, now = 0, next = 0; /* how many are open; what is cut so far; the first row to come */
    while (next < count || top) {
        const int same = next < count && (next == 0 || lane[next] == lane[next - 1]);
        if (next < count && (order[next] < 0 || order[next] >= rows)) return -2;
        const int64_t at = same ? start[order[next]] : INT64_MAX;
        for (; top; --top) { /* leave what is over */
            const int32_t last = open[top - 1];
            const int64_t end = add(start[last], duration[last]);
            if (end > at) break;
            if (end > now && !append(out, last, lane[next - 1], now, end)) return -1;
            now = end;
        }
        if (next == count) continue;
        const int64_t begin = start[order[next]];
        if (same && next > 0 && begin < now) return -1;
        if (same && next > 0 && begin > now && !append(out, top ? open[top - 1] : -1, lane[next], now, begin))
            return -1;
        now = begin;
        int64_t stop = next; /* of the rows that begin now: first those that last no time */
        for (; stop < count && lane[stop] == lane[next]; ++stop) {
            const int32_t row = order[stop];
            if (row < 0 || row >= rows) return -2;
            if (start[row] != begin) break;
            if (duration[row] < 0) return -1;
            if (duration[row] == 0 && !append(out, row, lane[next], begin, begin)) return -1;
        }
        for (; next < stop; ++next) {
            const int32_t row = order[next], outer = top ? open[top - 1] : -1;
            if (duration[row] == 0) continue;
            if (parent[row] != outer) return -1;
            if (outer >= 0 && add(begin, duration[row]) > add(start[outer], duration[outer])) return -1;
            open[top++] = row;
        }
    }
    return out->count;
}

PyObject *daydream_cut(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer b[12];
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*w*w*w*w*w*w*:cut", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6],
                          &b[7], &b[8], &b[9], &b[10], &b[11]))
        return NULL;
    const int64_t count = b[0].len / 4, rows = b[2].len / 8, room = b[6].len / 4;
    if (holds(&b[0], "order", count, 4) && holds(&b[1], "lane", count, 4) && holds(&b[2], "start", rows, 8) &&
        holds(&b[3], "duration", rows, 8) && holds(&b[4], "parent", rows, 4) && holds(&b[5], "open", count, 4) &&
        holds(&b[6], "owner", room, 4) && holds(&b[7], "on", room, 4) && holds(&b[8], "turn", room, 4) &&
        holds(&b[9], "begin", room, 8) && holds(&b[10], "end", room, 8) && holds(&b[11], "gap", room, 8)) {
        Stretches out = {.owner = b[6].buf, .lane = b[7].buf, .turn = b[8].buf, .start = b[9].buf,
                         .end = b[10].buf,  .gap = b[11].buf, .count = 0,       .room = room};
        int64_t found;
        Py_BEGIN_ALLOW_THREADS
        found = cut_rows(b[0].buf, b[1].buf, count, rows, b[2].buf, b[3].buf, b[4].buf, b[5].buf, &out);
        Py_END_ALLOW_THREADS
        if (found == -2)
            PyErr_SetString(PyExc_ValueError, "a row to be cut is out of range");
        else
            answer = PyLong_FromLongLong(found);
    }
    release_all(b, 12);
    return answer;
}
