/* Rows that `scan` has read, as the columns of a table: see `by_kind` in daydream/compiled/__init__.py. */

#include "_plan.h"

enum { MOST_WIDE = 64, MOST_KINDS = 64 };
enum { SEEN, ODD }; /* a row says there which fields it has, and which are odd */

typedef struct {
    const int64_t *rows;
    int64_t count, width, at, kinds; /* of the rows; `at` is where their kind stands */
    int64_t *columns, *edges, *fields;
} Table;

/* Counts the rows of each kind and collects their fields; returns the fields that any row has, or 0 for a kind
   that is none. */
static int count_kinds(const Table *t, uint64_t *any) {
    memset(t->edges, 0, (size_t)(t->kinds + 1) * sizeof *t->edges);
    memset(t->fields, 0, (size_t)(2 * t->kinds) * sizeof *t->fields);
    for (int64_t i = 0; i < t->count; ++i) {
        const int64_t *const row = t->rows + i * t->width;
        const uint64_t kind = (uint64_t)row[t->at];
        if (kind >= (uint64_t)t->kinds) return 0;
        ++t->edges[kind + 1];
        t->fields[kind] |= row[SEEN];
        t->fields[t->kinds + (int64_t)kind] |= row[ODD];
        *any |= (uint64_t)row[SEEN];
    }
    for (int64_t kind = 0; kind < t->kinds; ++kind) t->edges[kind + 1] += t->edges[kind];
    return 1;
}

static void write_columns(const Table *t, uint64_t taken) {
    int64_t next[MOST_KINDS], chosen[MOST_WIDE], many = 0;
    memcpy(next, t->edges, (size_t)t->kinds * sizeof *next);
    for (int64_t field = 0; field < t->width; ++field)
        if (taken >> field & 1) chosen[many++] = field;
    for (int64_t i = 0; i < t->count; ++i) {
        const int64_t *const row = t->rows + i * t->width;
        int64_t *const to = t->columns + next[row[t->at]]++;
        for (int64_t j = 0; j < many; ++j) to[chosen[j] * t->count] = row[chosen[j]];
    }
}

PyObject *daydream_by_kind(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer b[4];
    PyObject *answer = NULL;
    long long width, at;
    unsigned long long always;
    if (!PyArg_ParseTuple(args, "y*LLKw*w*w*:by_kind", &b[0], &width, &at, &always, &b[1], &b[2], &b[3])) return NULL;
    const int64_t kinds = b[2].len / 8 - 1;
    if (width <= ODD || width > MOST_WIDE || at < 0 || at >= width || kinds < 0 || kinds > MOST_KINDS) {
        PyErr_SetString(PyExc_ValueError, "the width, the place of the kind or the kinds are not as they must be");
    } else {
        const int64_t count = b[0].len / 8 / width;
        const Table t = {b[0].buf, count, width, at, kinds, b[1].buf, b[2].buf, b[3].buf};
        if (holds(&b[0], "rows", count * width, 8) && holds(&b[1], "columns", count * width, 8) &&
            holds(&b[2], "edges", kinds + 1, 8) && holds(&b[3], "fields", 2 * kinds, 8)) {
            uint64_t any = always;
            int fits;
            Py_BEGIN_ALLOW_THREADS
            fits = count_kinds(&t, &any);
            if (fits) write_columns(&t, any);
            Py_END_ALLOW_THREADS
            if (fits)
                answer = Py_NewRef(Py_None);
            else
                PyErr_SetString(PyExc_ValueError, "a row has a kind out of range");
        }
    }
    release_all(b, 4);
    return answer;
}
