/* Fields of the objects in a JSON list as integers: see `scan` in daydream/compiled/__init__.py.

   What it takes is strict JSON, and only values that an integer or a text stands for exactly: of anything else
   it takes nothing, so that the caller reads the list by other means. Every byte is looked at before the end of
   the text, and every row and text before the end of its buffer. */

#include "_plan.h"

enum { MOST_FIELDS = 62, DEEPEST = 64, DIGITS = 18, MOST_TRIES = 512, NOT_FOUND = -1 };
enum { PHASE, CATEGORY, NAME, OTHERS };          /* the first fields; */
enum { SEEN, ODD };                              /* a row says there which fields it has, and which are odd */
enum { OF_ROW, OF_MEMORY, OF_FLOW, CATEGORIES }; /* the first words: a phase, a name, a category; and the rest */
#define ODD_NUMBER (-((int64_t)1 << 62))       /* less the number of the text that stands for it */
#define NEEDS_DIGITS INT64_MAX                 /* a start for which a float is too coarse */

typedef struct {
    const uint8_t *text, *at, *end, *words; /* the text; texts known before, which the caller looks for */
    const char *names[MOST_FIELDS], *how; /* of each field: s start, d duration, t text, i number */
    Py_ssize_t sizes[MOST_FIELDS];
    int fields, top;         /* how many; how many of them stand in the object itself, its arguments the last */
    uint64_t likely[2];      /* what a name must look like to be one of them */
    int64_t *spans;          /* begin and size of each text */
    uint64_t *hashes;
    int32_t *slots;
    int64_t texts, most_texts, mask;
    int64_t seen, odd; /* of the row: bits of its fields */
    int exact, high;         /* whether starts are read by their digits; that a string has bytes beyond ASCII */
} Scan;

static inline void blanks(Scan *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r')) ++s->at;
}

static inline int is(Scan *s, int what) {
    blanks(s);
    if (s->at == s->end || *s->at != what) return 0;
    ++s->at;
    return 1;
}

static inline int digit(const Scan *s) { return s->at < s->end && *s->at >= '0' && *s->at <= '9'; }

/* Each passes what it is named after, of which `at` is the first byte; 0 if it is not strict JSON. */
static int string(Scan *s) {
    const uint64_t ones = ~(uint64_t)0 / 255, tops = ones * 128;
    uint64_t high = 0;
    for (++s->at; s->at < s->end;) {
        while (s->end - s->at >= 8) {
            uint64_t w;
            memcpy(&w, s->at, 8);
            const uint64_t quote = w ^ (ones * '"'), slash = w ^ (ones * '\\');
            if ((((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((w - ones * 32) & ~w)) & tops) break;
            high |= w & tops;
            s->at += 8;
        }
        if (s->at == s->end) return 0;
        const uint8_t c = *s->at++;
        high |= c & 128;
        if (c == '"') {
            s->high |= high != 0;
            return 1;
        }
        if (c < 32 || (c == '\\' && (s->at == s->end || !strchr("\"\\/bfnrt", *s->at++) || !s->at[-1]))) return 0;
    }
    return 0;
}

static int number(Scan *s) {
    if (*s->at == '-') ++s->at;
    if (!digit(s)) return 0;
    if (*s->at++ != '0') while (digit(s)) ++s->at;
    if (s->at < s->end && *s->at == '.') {
        ++s->at;
        if (!digit(s)) return 0;
        while (digit(s)) ++s->at;
    }
    if (s->at < s->end && (*s->at | 32) == 'e') {
        ++s->at;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) ++s->at;
        if (!digit(s)) return 0;
        while (digit(s)) ++s->at;
    }
    return 1;
}

static int literal(Scan *s, const char *word) {
    const Py_ssize_t size = (Py_ssize_t)strlen(word);
    if (s->end - s->at < size || memcmp(s->at, word, (size_t)size)) return 0;
    s->at += size;
    return 1;
}

static int value(Scan *s, int depth) {
    if (s->at == s->end || depth > DEEPEST) return 0;
    switch (*s->at) {
    case '"': return string(s);
    case 't': return literal(s, "true");
    case 'f': return literal(s, "false");
    case 'n': return literal(s, "null");
    case '{': case '[': {
        const int list = *s->at++ == '[';
        if (is(s, list ? ']' : '}')) return 1;
        do {
            blanks(s);
            if (!list) {
                if (s->at == s->end || *s->at != '"' || !string(s) || !is(s, ':')) return 0;
                blanks(s);
            }
            if (!value(s, depth + 1)) return 0;
        } while (is(s, ','));
        return is(s, list ? ']' : '}');
    }
    default: return number(s);
    }
}

static inline const uint8_t *place_of(const Scan *s, int64_t text) {
    const int64_t begin = s->spans[2 * text];
    return begin < 0 ? s->words - begin - 1 : s->text + begin;
}

/* Returns the number of a text, the same for equal ones; NOT_FOUND if there is no room, or if so many others
   stand in its way that somebody has chosen them so: half of the slots are empty. */
static int64_t numbered(Scan *s, const uint8_t *begin) {
    const int64_t size = s->at - begin;
    uint64_t hash = (uint64_t)size, w;
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&w, begin + i, 8);
        hash = (hash ^ w) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    for (w = 0; i < size; ++i) w = w << 8 | begin[i];
    hash = (hash ^ w) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    for (uint64_t slot = hash; slot != hash + MOST_TRIES; ++slot) {
        int32_t *const place = &s->slots[slot & (uint64_t)s->mask];
        if (*place < 0) {
            if (s->texts == s->most_texts) return NOT_FOUND;
            s->spans[2 * s->texts] = s->text ? begin - s->text : s->words - begin - 1;
            s->spans[2 * s->texts + 1] = size;
            s->hashes[s->texts] = hash;
            return *place = (int32_t)s->texts++;
        }
        if (s->hashes[*place] == hash && s->spans[2 * *place + 1] == size &&
            !memcmp(place_of(s, *place), begin, (size_t)size))
            return *place;
    }
    return NOT_FOUND;
}

/* Reads a number without an exponent, with a fraction if `point` is given, which gets how many digits that has.
   Returns TOO_LONG if there are more digits than fit, WRONG for anything else. */
static int digits(Scan *s, int64_t *found, int *point) {
    const uint8_t *const begin = s->at, *dot = NULL;
    uint64_t sum = 0;
    const int minus = begin < s->end && *begin == '-';
    s->at += minus;
    const uint8_t *const first = s->at;
    while (digit(s)) sum = sum * 10 + (uint64_t)(*s->at++ - '0');
    if (s->at == first || (*first == '0' && s->at - first > 1)) return WRONG;
    if (point && s->at < s->end && *s->at == '.') {
        dot = s->at++;
        while (digit(s)) sum = sum * 10 + (uint64_t)(*s->at++ - '0');
        if (s->at == dot + 1) return WRONG;
    }
    if (s->at < s->end && (*s->at == '.' || (*s->at | 32) == 'e')) return WRONG;
    if (s->at - first - (dot != NULL) > DIGITS) return TOO_LONG;
    if (point) *point = dot ? (int)(s->at - dot - 1) : 0;
    *found = minus ? -(int64_t)sum : (int64_t)sum;
    return DONE;
}

static const double TENS[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8, 1e9,
                              1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18};

/* Rounds to the nearest, halves to even; of numbers from 0 below 2**51. */
static inline int64_t rounded(double x) { return (int64_t)((x + 4503599627370496.0) - 4503599627370496.0); }

/* Microseconds to nanoseconds, rounded as daydream/collect/importers/kineto/values.py rounds them. */
static int start(Scan *s, int64_t *ns) {
    static const int64_t tens[] = {1, 10, 100, 1000};
    const int64_t most_us = 9200000000000000;
    const double most_exact_us = 8796093022208.0; /* 2**43 */
    int64_t n;
    int point;
    if (digits(s, &n, &point) != DONE) return 0;
    if (!point || (s->exact && point <= 3)) {
        if (n / tens[point] >= most_us || n / tens[point] <= -most_us) return 0;
        *ns = n * tens[3 - point];
        return 1;
    }
    const double us = (double)n / TENS[point];
    if (s->exact) return 0;
    if (us >= most_exact_us || us <= -most_exact_us) {
        *ns = NEEDS_DIGITS;
        return 1;
    }
    if (magnitude(n) >> 53) return 0; /* the quotient of larger numbers is rounded twice */
    int64_t whole = (int64_t)us;
    whole -= (double)whole > us;
    *ns = whole * 1000 + rounded((us - (double)whole) * 1000);
    return 1;
}

static int duration(Scan *s, int64_t *ns) {
    int64_t n;
    int point;
    if (digits(s, &n, &point) != DONE || magnitude(n) >> 53) return 0;
    const double thousandth = (double)magnitude(n) / TENS[point] * 1000;
    if (thousandth >= 2251799813685248.0) return 0; /* 2**51 */
    *ns = n < 0 ? -rounded(thousandth) : rounded(thousandth);
    return 1;
}

static int text(Scan *s, int64_t *found) {
    const uint8_t *const begin = s->at;
    if (!value(s, 0)) return 0;
    *found = numbered(s, begin);
    return *found != NOT_FOUND;
}

/* A float is not taken: whether it is rounded depends on what stands beside it. */
static int whole_number(Scan *s, int64_t *found, int64_t bit) {
    const uint8_t *const begin = s->at;
    if (begin < s->end && (*begin == '-' || digit(s))) {
        const int done = digits(s, found, NULL);
        if (done != TOO_LONG) return done == DONE;
    } else if (begin == s->end || (*begin == '"' ? !string(s) : !literal(s, "null"))) {
        return 0;
    }
    const int64_t number = numbered(s, begin);
    *found = ODD_NUMBER - number;
    s->odd |= bit;
    return number != NOT_FOUND;
}

static inline uint64_t look(const void *name, Py_ssize_t size) {
    const uint8_t *const c = name;
    return (uint64_t)1 << ((size ? c[0] + 7 * c[size - 1] + 31 * (int)size : 0) & 63);
}

/* Reads an object, of which the brace was read: an event, or its arguments. */
static int members(Scan *s, int64_t *row, int inner) {
    const int first = inner ? s->top : 0, stop = inner ? s->fields : s->top;
    int next = first;
    if (is(s, '}')) return 1;
    do {
        int field = NOT_FOUND, fine;
        if (!is(s, '"')) return 0;
        if (next == stop) next = first;
        if (s->end - s->at > s->sizes[next] && s->at[s->sizes[next]] == '"' &&
            !memcmp(s->at, s->names[next], (size_t)s->sizes[next])) {
            s->at += s->sizes[next];
            field = next++;
        } else {
            const uint8_t *const name = s->at;
            for (; s->at < s->end && *s->at != '"'; ++s->at)
                if (*s->at < 32 || *s->at == '\\' || *s->at > 127) return 0;
            const Py_ssize_t size = s->at - name;
            if (s->likely[inner] & look(name, size))
                for (int i = first; i < stop && field < 0; ++i)
                    if (s->sizes[i] == size && !memcmp(s->names[i], name, (size_t)size)) field = i, next = i + 1;
        }
        if (!is(s, '"') || !is(s, ':')) return 0;
        blanks(s);
        if (field < 0) {
            fine = value(s, 0);
        } else {
            const int64_t bit = (int64_t)1 << field, seen = s->seen;
            s->seen |= bit;
            switch (s->how[field]) {
            case 's': fine = start(s, &row[field]); break;
            case 'd': fine = duration(s, &row[field]); break;
            case 't': fine = text(s, &row[field]); break;
            case 'a': fine = !(seen & bit) && !inner && is(s, '{') && members(s, row, 1); break;
            default: fine = whole_number(s, &row[field], bit);
            }
        }
        if (!fine) return 0;
    } while (is(s, ','));
    return is(s, '}');
}

/* Numbers the words, JSON strings without blanks, from 0; returns how many they are, NOT_FOUND if others stand there. */
static int64_t take_words(Scan *s, const Py_buffer *words) {
    s->at = s->words = words->buf;
    s->end = s->at + words->len;
    while (s->at < s->end) {
        const uint8_t *const begin = s->at;
        const int64_t next = s->texts;
        if (*begin != '"' || !string(s) || numbered(s, begin) != next) return NOT_FOUND;
    }
    return s->texts;
}

/* Reads the list, or what stands in it; returns how many rows are kept, or NOT_FOUND. `kinds` tells of each word which kind of row
   the category has, -1 for none; other categories have that of the first word, and memory that of the second. */
static int64_t events(Scan *s, const int8_t *kinds, int64_t words, const int64_t *blank, int64_t *rows,
                      int64_t most_rows) {
    const int width = s->fields + 2;
    int64_t kept = 0;
    const int list = is(s, '[');
    if (list && is(s, ']')) goto end;
    do {
        blanks(s);
        const uint8_t *const begin = s->at;
        if (kept == most_rows || !is(s, '{')) return NOT_FOUND;
        int64_t *const row = rows + kept * width;
        memcpy(row, blank, (size_t)width * sizeof *row);
        s->seen = s->odd = 0;
        if (!members(s, row, 0)) return NOT_FOUND;
        const int64_t category = row[CATEGORY];
        int kind = -1;
        if (row[PHASE] == OF_ROW)
            kind = kinds[category >= CATEGORIES && category < words ? category : OF_ROW];
        else if (row[NAME] == OF_MEMORY)
            kind = kinds[OF_MEMORY];
        else if (category == OF_FLOW)
            return NOT_FOUND;
        if (kind < 0) continue;
        row[SEEN] = s->seen;
        row[ODD] = s->odd;
        row[s->top - 1] = kind;
        row[width - 2] = begin - s->text;
        row[width - 1] = s->at - begin;
        ++kept;
    } while (is(s, ','));
    if (list && !is(s, ']')) return NOT_FOUND;
end:
    blanks(s);
    return s->at == s->end ? kept : NOT_FOUND;
}

/* Takes the names of the fields; sets an error and returns 0 if they do not fit. */
static int take_names(Scan *s, PyObject *names, Py_ssize_t how) {
    const Py_ssize_t fields = PyTuple_Size(names);
    if (fields < 0) return 0;
    if (fields != how || fields > MOST_FIELDS || s->top >= fields || s->top <= OTHERS ||
        s->how[PHASE] != 't' || s->how[CATEGORY] != 't' || s->how[NAME] != 't' || s->how[s->top - 1] != 'a') {
        PyErr_SetString(PyExc_ValueError, "the fields are not as they must be");
        return 0;
    }
    s->fields = (int)fields;
    for (int i = 0; i < s->fields; ++i) {
        char *name;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(names, i), &name, &s->sizes[i]) < 0) return 0;
        s->names[i] = name;
        s->likely[i >= s->top] |= look(name, s->sizes[i]);
    }
    return 1;
}

PyObject *daydream_scan(PyObject *module, PyObject *args) {
    (void)module;
    enum { HOW, WORDS, KINDS, BLANK, TEXT, ROWS, SPANS, HASHES, SLOTS, BUFFERS };
    Py_buffer b[BUFFERS];
    PyObject *names, *answer = NULL;
    Scan s = {0};
    int64_t kept = NOT_FOUND;
    if (!PyArg_ParseTuple(args, "O!y*iy*y*y*y*w*w*w*w*p:scan", &PyTuple_Type, &names, &b[HOW], &s.top, &b[WORDS],
                          &b[KINDS], &b[BLANK], &b[TEXT], &b[ROWS], &b[SPANS], &b[HASHES], &b[SLOTS], &s.exact))
        return NULL;
    s.how = b[HOW].buf;
    if (take_names(&s, names, b[HOW].len)) {
        const int64_t width = s.fields + 2, rows = b[ROWS].len / 8 / width, slots = b[SLOTS].len / 4;
        s.most_texts = slots / 2;
        s.spans = b[SPANS].buf, s.hashes = b[HASHES].buf, s.slots = b[SLOTS].buf, s.mask = slots - 1;
        if (holds(&b[BLANK], "blank", width, 8) && holds(&b[ROWS], "rows", rows * width, 8) &&
            holds(&b[SPANS], "spans", slots, 8) && holds(&b[HASHES], "hashes", s.most_texts, 8) &&
            holds(&b[SLOTS], "slots", slots, 4)) {
            const int fits = slots >= 2 && slots <= 1 << 30 && !(slots & (slots - 1)) && b[KINDS].len >= CATEGORIES;
            if (fits) memset(s.slots, 255, (size_t)b[SLOTS].len);
            if (!fits || take_words(&s, &b[WORDS]) != b[KINDS].len) {
                PyErr_SetString(PyExc_ValueError, "the words, their kinds or the slots are not as they must be");
            } else {
                s.text = s.at = b[TEXT].buf;
                s.end = s.at + b[TEXT].len;
                Py_BEGIN_ALLOW_THREADS
                kept = events(&s, b[KINDS].buf, b[KINDS].len, b[BLANK].buf, b[ROWS].buf, rows);
                Py_END_ALLOW_THREADS
                answer = kept < 0 ? Py_NewRef(Py_None)
                                  : Py_BuildValue("LLi", (long long)kept, (long long)s.texts, s.high);
            }
        }
    }
    release_all(b, BUFFERS);
    return answer;
}
