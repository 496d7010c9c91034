/* test/base/trace_help.h -- reads a trace file back with a strict JSON parser, and checks its
 * spans.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_BASE_TRACE_HELP_H
#define TEST_BASE_TRACE_HELP_H

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "../strategy/help.h"

enum { T_SPANS = 4096, T_TRACKS = 16 };

typedef struct t_span {
    int     tid;
    int64_t begin, end; /* ns */
    char    name[256];
} t_span;

typedef struct t_trace {
    int    n_spans, n_tracks;
    t_span span[T_SPANS];
    struct {
        int  tid;
        char name[128];
    } track[T_TRACKS];
    char process[128], labels[128];
} t_trace;

/* A parsed event. */
typedef struct t_event {
    char   ph[8], name[1024], value[256]; /* value: of its only argument */
    double number[4];                     /* pid, tid, ts, dur; NaN: absent */
} t_event;

static inline void t_blank(const char **at)
{
    while (**at == ' ' || **at == '\n' || **at == '\t' || **at == '\r')
        ++*at;
}

static inline void t_want(const char **at, char c)
{
    t_blank(at);
    if (**at != c)
        fail_msg("want '%c' at \"%.40s\"", c, *at);
    ++*at;
    t_blank(at);
}

/* Parses a string. \u is decoded to a single byte, because a trace writes no larger code. */
static inline void t_string(const char **at, char *to, size_t size)
{
    size_t n = 0;

    t_want(at, '"');
    for (--*at, ++*at; **at != '"'; ++*at) {
        unsigned c = (unsigned char)**at;

        if (c < 0x20)
            fail_msg("a control character, or no end, in a string");
        if (c == '\\') {
            assert_int_equal(sscanf(*at, "\\u%4x", &c), 1);
            *at += 5;
        }
        assert_true(n + 1 < size);
        to[n++] = (char)c;
    }
    to[n] = '\0';
    t_want(at, '"');
}

static inline double t_number(const char **at)
{
    char  *end;
    double x = strtod(*at, &end);

    if (end == *at || !isdigit((unsigned char)**at))
        fail_msg("no number at \"%.40s\"", *at);
    *at = end;
    t_blank(at);
    return x;
}

static inline void t_member(const char **at, t_event *e)
{
    static const char *const numbers[] = {"pid", "tid", "ts", "dur"};
    char                     key[32], inner[32];

    t_string(at, key, sizeof(key));
    t_want(at, ':');
    if (strcmp(key, "args") == 0) {
        t_want(at, '{');
        t_string(at, inner, sizeof(inner));
        t_want(at, ':');
        t_string(at, e->value, sizeof(e->value));
        t_want(at, '}');
        return;
    }
    for (int i = 0; i < 4; i++)
        if (strcmp(key, numbers[i]) == 0) {
            e->number[i] = t_number(at);
            return;
        }
    t_string(at, strcmp(key, "ph") == 0 ? e->ph : e->name,
             strcmp(key, "ph") == 0 ? sizeof(e->ph) : sizeof(e->name));
}

static inline void t_keep_event(t_trace *t, const t_event *e)
{
    int tid = (int)e->number[1];

    assert_false(isnan(e->number[0]) || isnan(e->number[1]));
    if (strcmp(e->ph, "X") == 0) {
        int64_t begin = llround(e->number[2] * 1000);

        assert_true(t->n_spans < T_SPANS && e->number[3] >= 0);
        t->span[t->n_spans] = (t_span){tid, begin, begin + llround(e->number[3] * 1000), ""};
        snprintf(t->span[t->n_spans++].name, sizeof(t->span[0].name), "%.255s", e->name);
        return;
    }
    assert_string_equal(e->ph, "M");
    if (strcmp(e->name, "thread_name") == 0) {
        assert_true(t->n_tracks < T_TRACKS);
        t->track[t->n_tracks].tid = tid;
        snprintf(t->track[t->n_tracks++].name, 128, "%.127s", e->value);
    } else if (strcmp(e->name, "process_name") == 0) {
        snprintf(t->process, sizeof(t->process), "%.127s", e->value);
    } else {
        assert_string_equal(e->name, "process_labels");
        snprintf(t->labels, sizeof(t->labels), "%.127s", e->value);
    }
}

static inline void t_read_text(t_trace *t, const char *at)
{
    t_want(&at, '[');
    for (bool more = true; more;) {
        t_event e = {.number = {NAN, NAN, NAN, NAN}};

        t_want(&at, '{');
        for (bool member = true; member;) {
            t_member(&at, &e);
            member = *at == ',';
            at += member;
            t_blank(&at);
        }
        t_want(&at, '}');
        t_keep_event(t, &e);
        more = *at == ',';
        at += more;
    }
    t_want(&at, ']');
    assert_int_equal(*at, '\0');
}

static inline int t_by_begin(const void *a, const void *b)
{
    const t_span *x = a, *y = b;

    if (x->tid != y->tid)
        return x->tid - y->tid;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

/* Checks that two spans on a track are nested or do not overlap. */
static inline void t_check_nesting(t_trace *t)
{
    t_span *open[64];
    int     depth = 0;

    qsort(t->span, (size_t)t->n_spans, sizeof(t->span[0]), t_by_begin);
    for (int i = 0; i < t->n_spans; i++) {
        t_span *s = &t->span[i];

        while (depth > 0 &&
               (open[depth - 1]->tid != s->tid || open[depth - 1]->end <= s->begin))
            depth--;
        if (depth > 0 && s->end > open[depth - 1]->end)
            fail_msg("%s ends after %s, in which it began", s->name, open[depth - 1]->name);
        assert_true(depth < 64);
        open[depth++] = s;
    }
}

/* Reads and checks a whole trace. The caller must free the result. */
static inline t_trace *t_trace_read(const char *path)
{
    FILE    *f = fopen(path, "r");
    t_trace *t = calloc(1, sizeof(*t));
    char    *text = calloc(1, 4 << 20);
    size_t   n;

    assert_true(f != NULL && t != NULL && text != NULL);
    n = fread(text, 1, (4 << 20) - 1, f);
    assert_true(n > 0 && n < (4 << 20) - 1);
    fclose(f);
    t_read_text(t, text);
    free(text);
    t_check_nesting(t);
    return t;
}

/* Returns the number of spans of a track whose name begins with this text. */
static inline int t_count(const t_trace *t, const char *track, const char *name)
{
    int n = 0, tid = -1;

    for (int i = 0; i < t->n_tracks; i++)
        if (strstr(t->track[i].name, track) != NULL)
            tid = t->track[i].tid;
    for (int i = 0; i < t->n_spans; i++)
        n += t->span[i].tid == tid && strncmp(t->span[i].name, name, strlen(name)) == 0;
    return n;
}

#endif
