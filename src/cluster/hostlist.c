/* cluster/hostlist.c -- parses Slurm's host lists and lists of tasks per node.
 *
 * A host list is a comma-separated list of patterns. A pattern (struct pattern) is a sequence
 * of pieces, each a text or a bracket with ranges of numbers. Each bracket contributes a number
 * to the name of a host. The hosts of a pattern are enumerated like an odometer: the last
 * bracket changes fastest. The text is untrusted; check_room limits the number of hosts before
 * any name is made. slurm.c is the caller.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/hostlist.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "cluster/cluster.h"

enum { MAX_BRACKETS = 8, MAX_DIGITS = 9, NUMBER_LIMIT = 1000000000 };

static ch_status fail_format(const char *text, size_t n, const char *why)
{
    return ch__fail(CH_INVALID_ARGUMENT, "Invalid hostlist format: \"%.*s\": %s",
                    (int)(n < 80 ? n : 80), text, why);
}

/* ---- brackets ---- */

typedef struct range {
    int first, last, width; /* width: minimum number of digits, with leading zeros */
} range;

/* A piece of a pattern: text, or a bracket with ranges. */
typedef struct piece {
    const char *text; /* NULL: a bracket */
    size_t      n;
    int         n_ranges, cap;
    range      *range;
    int         at, number; /* range and number of the current host */
} piece;

/* Parses "5" or "01-04". */
static ch_status read_range(const char *text, size_t n, range *out)
{
    const char *dash = memchr(text, '-', n);
    size_t      width = dash != NULL ? (size_t)(dash - text) : n;

    if (width > MAX_DIGITS || !ch__parse_number(text, width, NUMBER_LIMIT, &out->first))
        return fail_format(text, n, "not a number, or a range of two, of up to 9 digits");
    out->last = out->first;
    out->width = (int)width;
    if (dash != NULL && (n - width - 1 > MAX_DIGITS ||
                         !ch__parse_number(dash + 1, n - width - 1, NUMBER_LIMIT, &out->last)))
        return fail_format(text, n, "not a number, or a range of two, of up to 9 digits");
    if (out->last < out->first)
        return fail_format(text, n, "the range is descending");
    return CH_OK;
}

/* Parses the text between two brackets. */
static ch_status read_ranges(const char *text, size_t n, piece *p)
{
    const char *end = text + n;

    for (const char *at = text; at <= end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma != NULL ? comma : end;
        range       r = {0};
        ch_status   rc = read_range(at, (size_t)(stop - at), &r);

        if (rc != CH_OK)
            return rc;
        if (!ch__grow((void **)&p->range, &p->cap, p->n_ranges + 1, sizeof(*p->range)))
            return ch__fail_memory("a list of hosts");
        if (p->n_ranges == 0)
            p->number = r.first;
        p->range[p->n_ranges++] = r;
        at = stop + 1;
    }
    return CH_OK;
}

/* ---- patterns ---- */

typedef struct pattern {
    int   n;
    piece piece[2 * MAX_BRACKETS + 1];
} pattern;

/* Parses a pattern. The caller must free its ranges, also on an error. */
static ch_status read_pattern(const char *text, size_t n, pattern *p)
{
    const char *end = text + n, *at = text;
    ch_status   rc = CH_OK;

    if (n == 0)
        return fail_format(text, n, "a host is empty");
    while (at < end && rc == CH_OK) {
        piece *x = &p->piece[p->n];

        if (p->n == 2 * MAX_BRACKETS + 1)
            return fail_format(text, n, "more than 8 brackets");
        *x = (piece){0};
        p->n++;
        if (*at == '[') {
            const char *close = memchr(at, ']', (size_t)(end - at));

            if (close == NULL)
                return fail_format(text, n, "a bracket is not closed");
            rc = read_ranges(at + 1, (size_t)(close - at - 1), x);
            at = close + 1;
        } else {
            x->text = at;
            while (at < end && *at != '[')
                if (*at++ == ']')
                    return fail_format(text, n, "a bracket is closed but not opened");
            x->n = (size_t)(at - x->text);
        }
    }
    return rc;
}

/* Advances a bracket to its next number. Returns false after the last number, and begins with
 * the first again. */
static bool next_number(piece *x)
{
    if (x->number < x->range[x->at].last) {
        x->number++;
        return true;
    }
    x->at = x->at + 1 < x->n_ranges ? x->at + 1 : 0;
    x->number = x->range[x->at].first;
    return x->at != 0;
}

/* Advances a pattern to its next host. Returns false after the last host. */
static bool next_host(pattern *p)
{
    for (int i = p->n - 1; i >= 0; i--)
        if (p->piece[i].text == NULL && next_number(&p->piece[i]))
            return true;
    return false;
}

/* Appends the name of the current host to the list. */
static ch_status add_host(const pattern *p, ch_arena *arena, ch_hosts *out)
{
    char   name[CH_ADDRESS_BYTES];
    size_t used = 0;

    for (int i = 0; i < p->n; i++) {
        const piece *x = &p->piece[i];
        size_t       room = sizeof(name) - used;
        int          n =
            x->text != NULL
                         ? snprintf(name + used, room, "%.*s", (int)(x->n < room ? x->n : room), x->text)
                         : snprintf(name + used, room, "%0*d", x->range[x->at].width, x->number);

        used += (size_t)n;
        if (used >= sizeof(name))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "Invalid hostlist format: a name of more than %d characters",
                            CH_ADDRESS_BYTES - 1);
    }
    if (!ch__grow((void **)&out->name, &out->cap, out->n + 1, sizeof(*out->name)) ||
        (out->name[out->n] = ch__arena_strdup(arena, name)) == NULL)
        return ch__fail_memory("a list of hosts");
    out->n++;
    return CH_OK;
}

/* Returns RESOURCE_EXHAUSTED if the pattern has more than `room` hosts. Called before any name
 * is made. */
static ch_status check_room(const pattern *p, int room)
{
    int64_t all = 1;

    for (int i = 0; i < p->n && all <= room; i++) {
        const piece *x = &p->piece[i];
        int64_t      n = x->text != NULL;

        for (int k = 0; k < x->n_ranges && n <= room; k++)
            n += (int64_t)x->range[k].last - x->range[k].first + 1;
        all *= n; /* no overflow: both are below 2^31 */
    }
    return all <= room ? CH_OK
                       : ch__fail(CH_RESOURCE_EXHAUSTED, "a list of more than %d hosts",
                                  CH_CLUSTER_TASKS);
}

/* Appends all hosts of a pattern. */
static ch_status expand(const char *text, size_t n, ch_arena *arena, ch_hosts *out)
{
    pattern   p = {0};
    ch_status rc = read_pattern(text, n, &p);

    if (rc == CH_OK)
        rc = check_room(&p, CH_CLUSTER_TASKS - out->n);
    while (rc == CH_OK) {
        rc = add_host(&p, arena, out);
        if (rc == CH_OK && !next_host(&p))
            break;
    }
    for (int i = 0; i < p.n; i++)
        ch__free(p.piece[i].range);
    return rc;
}

/* Returns the comma that ends this pattern, or the end of the text. Commas in brackets do not
 * count. */
static const char *end_of_part(const char *text)
{
    bool inside = false;

    for (; *text != '\0' && (inside || *text != ','); text++)
        inside = *text == '[' || (inside && *text != ']');
    return text;
}

ch_status ch__hostlist_expand(const char *text, ch_arena *arena, ch_hosts *out)
{
    ch_hosts  hosts = {0};
    ch_status rc = CH_OK;

    for (const char *at = text; rc == CH_OK; at++) {
        const char *stop = end_of_part(at);

        rc = expand(at, (size_t)(stop - at), arena, &hosts);
        at = stop;
        if (*at == '\0')
            break;
    }
    if (rc == CH_OK)
        *out = hosts;
    else
        ch__free(hosts.name);
    return rc;
}

/* ---- tasks per node ---- */

/* Parses "N" or "N(xR)". */
static bool read_count(const char *text, size_t n, int *tasks, int *times)
{
    const char *open = memchr(text, '(', n);
    size_t      digits = open != NULL ? (size_t)(open - text) : n;

    *times = 1;
    if (!ch__parse_number(text, digits, CH_CLUSTER_TASKS + 1, tasks))
        return false;
    return open == NULL ||
           (n - digits > 3 && open[1] == 'x' && text[n - 1] == ')' &&
            ch__parse_number(open + 2, n - digits - 3, CH_CLUSTER_TASKS + 1, times));
}

ch_status ch__tasks_per_node(const char *text, int room, int *tasks, int *n)
{
    int count = 0;

    for (const char *at = text;; at++) {
        const char *stop = at + strcspn(at, ",");
        int         each, times;

        if (!read_count(at, (size_t)(stop - at), &each, &times))
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "\"%.80s\" is not a list of tasks per node (want a list such as 3(x2),2,1)",
                text);
        if (times > CH_CLUSTER_TASKS - count)
            return ch__fail(CH_RESOURCE_EXHAUSTED, "tasks on more than %d nodes",
                            CH_CLUSTER_TASKS);
        for (int i = 0; i < times; i++, count++)
            if (count < room)
                tasks[count] = each;
        at = stop;
        if (*at == '\0')
            break;
    }
    *n = count;
    return CH_OK;
}
