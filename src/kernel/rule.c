/* kernel/rule.c -- update rules: on whole arrays, and on rows by their ids.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/rule.h"

#include <math.h>
#include <string.h>

#include "base/prefetch.h"

/* clang-format off */
/* name, slots; sparse, by row, norms, initial */
static const ch_rule rules[CH_RULES] = {
    [CH_RULE_SGD] = {CH_RULE_SGD, "sgd", 0, {NULL}, true, false, false, false},
    [CH_RULE_MOMENTUM] = {CH_RULE_MOMENTUM, "momentum", 1, {"momentum"}, true, false, false, false},
    [CH_RULE_NESTEROV] = {CH_RULE_NESTEROV, "nesterov", 1, {"momentum"}, true, false, false, false},
    [CH_RULE_ADAGRAD] = {CH_RULE_ADAGRAD, "adagrad", 1, {"accumulator"}, true, false, false, true},
    [CH_RULE_ADAGRAD_ROWS] = {CH_RULE_ADAGRAD_ROWS, "adagrad_rows", 1, {"accumulator"}, true, true, false, true},
    [CH_RULE_RMSPROP] = {CH_RULE_RMSPROP, "rmsprop", 1, {"velocity"}, false, false, false, false},
    [CH_RULE_RMSPROP_MOMENTUM] = {CH_RULE_RMSPROP_MOMENTUM, "rmsprop_momentum", 2, {"velocity", "momentum"}, false, false, false, false},
    [CH_RULE_RMSPROP_CENTERED] = {CH_RULE_RMSPROP_CENTERED, "rmsprop_centered", 2, {"velocity", "mean"}, false, false, false, false},
    [CH_RULE_RMSPROP_CENTERED_MOMENTUM] = {CH_RULE_RMSPROP_CENTERED_MOMENTUM, "rmsprop_centered_momentum", 3, {"velocity", "mean", "momentum"}, false, false, false, false},
    [CH_RULE_ADAM] = {CH_RULE_ADAM, "adam", 2, {"m", "v"}, true, false, false, false},
    [CH_RULE_AMSGRAD] = {CH_RULE_AMSGRAD, "amsgrad", 3, {"m", "v", "v_hat"}, true, false, false, false},
    [CH_RULE_ADAMAX] = {CH_RULE_ADAMAX, "adamax", 2, {"m", "u"}, false, false, false, false},
    [CH_RULE_FTRL] = {CH_RULE_FTRL, "ftrl", 2, {"accumulator", "linear"}, true, false, false, true},
    [CH_RULE_LAMB] = {CH_RULE_LAMB, "lamb", 2, {"m", "v"}, false, false, true, false},
};
/* clang-format on */

const ch_rule *ch__rule(ch_rule_kind kind)
{
    return &rules[kind];
}

const ch_rule *ch__rule_find(const char *name)
{
    for (int i = 0; i < CH_RULES && name != NULL; i++)
        if (strcmp(rules[i].name, name) == 0)
            return &rules[i];
    return NULL;
}

static const ch_rule_loops *loops_of(ch_dtype dtype)
{
    static const ch_rule_table *const levels[] = CH_SIMD_LIST(ch__rule_table);
    const ch_rule_table              *t = levels[ch__simd_level()];

    return dtype == CH_F64 ? &t->f64 : &t->f32;
}

/* ---- whole arrays ---- */

enum { RUN = 512 }; /* elements that are added up in their own type, and of buffers */

/* Adds x to a row's accumulator; returns what it is now. */
static double accumulate(ch_dtype dtype, void *at, double x)
{
    if (dtype == CH_F64)
        return *(double *)at += x;
    return (double)(*(float *)at += (float)x);
}

static double row_squares(const ch_rule_loops *k, size_t size, int64_t width, const char *grad,
                          const void *hyper)
{
    double sum = 0;

    for (int64_t i = 0; i < width; i += RUN)
        sum += k->squares(width - i < RUN ? width - i : RUN, grad + (size_t)i * size, hyper);
    return sum;
}

static void dense_rows(ch_dtype dtype, int64_t n, int64_t width, char *var, const char *grad,
                       char *slot, const void *hyper)
{
    const ch_rule_loops *k = loops_of(dtype);
    size_t               size = ch_dtype_bytes(dtype), bytes = (size_t)width * size;

    for (int64_t i = 0; i < n; i += width, var += bytes, grad += bytes, slot += size) {
        double sum = row_squares(k, size, width, grad, hyper);

        k->row(width, var, grad, accumulate(dtype, slot, sum / (double)width), hyper);
    }
}

void ch__rule_dense(const ch_rule *r, ch_dtype dtype, int64_t n, int64_t width, void *var,
                    const void *grad, void *const *slot, const void *hyper)
{
    if (r->by_row)
        dense_rows(dtype, n, width, var, grad, slot[0], hyper);
    else
        loops_of(dtype)->update[r->kind](n, var, grad, slot, hyper);
}

void ch__rule_norms(ch_dtype dtype, int64_t n, const void *var, const void *grad,
                    void *const *slot, const void *hyper, double *norm)
{
    loops_of(dtype)->norms(n, var, grad, slot, hyper, norm);
}

/* The trust ratio: how far a step goes that is as long as the variable. */
void ch__rule_finish(ch_dtype dtype, int64_t n, void *var, void *const *slot, const void *hyper,
                     const double *norm)
{
    double ratio = norm[0] > 0 && norm[1] > 0 ? sqrt(norm[0]) / sqrt(norm[1]) : 1;

    loops_of(dtype)->finish(n, var, slot, hyper, ratio);
}

double ch__sum_of_squares(ch_dtype dtype, int64_t n, const void *x)
{
    return loops_of(dtype)->sum_squares(n, x);
}

/* ---- groups of equal ids ----
 *
 * Positions are sorted by who owns their row (kernel/rows.h). An owner then goes through its
 * positions in order and puts each into the group of its id, which it finds in a hash
 * table; a group is a chain of positions. Scratch: what the sorting needs; the groups; the
 * tables, of which an owner of k positions has 2 k places; the chains, by position. */

typedef struct group {
    int64_t  id;
    uint32_t first, last; /* positions */
} group;

typedef struct places {
    group    *groups;
    uint32_t *table; /* 1 + the number of a group; 0: empty */
    uint32_t *next;  /* of a position that is not the last of its group */
} places;

static size_t sorted_bytes(const ch_groups *g)
{
    return (ch__scatter_scratch(&g->scatter) + 63) / 64 * 64;
}

void ch__groups_cut(ch_groups *g, int tiles)
{
    ch__scatter_cut(&g->scatter, tiles);
}

size_t ch__groups_scratch(const ch_groups *g)
{
    return sorted_bytes(g) + (size_t)g->scatter.n_ids * (sizeof(group) + 3 * sizeof(uint32_t));
}

void ch__groups_sort(const ch_groups *g, ch_ids ids, int chunk, void *scratch)
{
    ch__scatter_sort(&g->scatter, ids, chunk, scratch);
}

static places places_of(const ch_groups *g, void *scratch)
{
    char *at = (char *)scratch + sorted_bytes(g);
    char *table = at + (size_t)g->scatter.n_ids * sizeof(group);
    char *next = table + (size_t)g->scatter.n_ids * 2 * sizeof(uint32_t);

    return (places){(void *)at, (void *)table, (void *)next};
}

/* How many positions a tile owns, and all tiles before it. */
static void owned(const ch_groups *g, const void *scratch, int tile, int64_t *before,
                  int64_t *mine)
{
    *before = *mine = 0;
    for (int chunk = 0; chunk < g->scatter.chunks; chunk++)
        for (int t = 0; t <= tile; t++) {
            int64_t n;

            (void)ch__scatter_owned(&g->scatter, scratch, chunk, t, &n);
            *(t < tile ? before : mine) += n;
        }
}

/* The place of an id in a table of `size` places: its group's, or an empty one. The factor is
 * not the one that decides who owns it. */
static inline uint32_t *place_of(const places *p, uint64_t size, int64_t id)
{
    uint64_t at = (((uint64_t)id * 0xd6e8feb86659fd93u) >> 32) * size >> 32;

    while (p->table[at] != 0 && p->groups[p->table[at] - 1].id != id)
        at = at + 1 == size ? 0 : at + 1;
    return &p->table[at];
}

static inline void join(const places *p, uint64_t size, int64_t id, uint32_t position,
                        uint32_t *n)
{
    uint32_t *at = place_of(p, size, id);

    if (*at == 0) {
        p->groups[*n] = (group){id, position, position};
        *at = ++*n;
    } else {
        group *old = &p->groups[*at - 1];

        p->next[old->last] = position;
        old->last = position;
    }
}

/* Groups what `tile` owns; returns how many there are, in order of their first position. */
static uint32_t group_ids(const ch_groups *g, ch_ids ids, int tile, void *scratch, places *p)
{
    int64_t  before = 0, mine = g->scatter.n_ids;
    uint32_t n = 0;

    *p = places_of(g, scratch);
    if (g->scatter.tiles > 1)
        owned(g, scratch, tile, &before, &mine);
    p->groups += before;
    p->table += 2 * before;
    memset(p->table, 0, (size_t)mine * 2 * sizeof(uint32_t));
    for (int64_t i = 0; i < g->scatter.n_ids && g->scatter.tiles == 1; i++) {
        int64_t id = ch__id(ids, i);

        if ((uint64_t)id < (uint64_t)g->scatter.n_rows)
            join(p, 2 * (uint64_t)mine, id, (uint32_t)i, &n);
    }
    for (int chunk = 0; chunk < g->scatter.chunks; chunk++) {
        int64_t         k;
        const uint32_t *at = ch__scatter_owned(&g->scatter, scratch, chunk, tile, &k);

        for (int64_t i = 0; i < k; i++)
            join(p, 2 * (uint64_t)mine, ch__id(ids, at[i]), at[i], &n);
    }
    return n;
}

/* ---- rows of groups ---- */

typedef struct rows {
    const ch_rule       *rule;
    const ch_rule_loops *k;
    ch_dtype             dtype;
    int64_t              width;
    size_t               size, bytes; /* of an element, of a row */
    ch_grad_rows         grad;
    const uint32_t      *next;
} rows;

/* Where the gradient of a position is; NULL: it is zeros. */
static inline const char *row_at(const rows *r, uint32_t position)
{
    int64_t at = r->grad.which.at != NULL ? ch__id(r->grad.which, position) : position;

    return (uint64_t)at < (uint64_t)r->grad.n
               ? (const char *)r->grad.row + (size_t)at * r->bytes
               : NULL;
}

/* The same from a place of the row on; zeros are no more than RUN. */
static inline const char *part_at(const rows *r, uint32_t position, size_t skip)
{
    static const double zeros[RUN];
    const char         *row = row_at(r, position);

    return row != NULL ? row + skip : (const char *)zeros;
}

/* Elements [at, at + n) of the sum of a group's rows: where they are, or in `room`. */
static inline const char *sum_of(const rows *r, const group *u, int64_t at, int64_t n,
                                 char *room)
{
    size_t   skip = (size_t)at * r->size;
    uint32_t p = u->first;

    if (u->first == u->last)
        return part_at(r, p, skip);
    memcpy(room, part_at(r, p, skip), (size_t)n * r->size);
    while (p != u->last) {
        p = r->next[p];
        r->k->add(n, part_at(r, p, skip), room);
    }
    return room;
}

static inline int64_t piece(const rows *r, const group *u, int64_t at)
{
    int64_t left = r->width - at;

    return left <= RUN || (u->first == u->last && row_at(r, u->first) != NULL) ? left : RUN;
}

/* One row, piece by piece where rows must be added up. */
static void update_row(const rows *r, const group *u, char *var, char *const *slot,
                       const void *hyper)
{
    char    room[RUN * sizeof(double)];
    void   *at[CH_RULE_SLOTS] = {0};
    int64_t n;

    for (int64_t i = 0; i < r->width; i += n) {
        size_t      skip = (size_t)i * r->size;
        const char *grad;

        n = piece(r, u, i);
        grad = sum_of(r, u, i, n, room);
        for (int k = 0; k < r->rule->n_slots; k++)
            at[k] = slot[k] + (size_t)u->id * r->bytes + skip;
        r->k->update[r->rule->kind](n, var + skip, grad, at, hyper);
    }
}

/* The same for rules by row: once through it for its squares, then for the row. */
static void update_by_row(const rows *r, const group *u, char *var, char *slot,
                          const void *hyper)
{
    char        room[RUN * sizeof(double)];
    const char *grad = NULL;
    double      sum = 0;
    int64_t     n;

    for (int64_t i = 0; i < r->width; i += n) {
        n = r->width - i < RUN ? r->width - i : RUN;
        grad = sum_of(r, u, i, n, room);
        sum += r->k->squares(n, grad, hyper);
    }
    sum = accumulate(r->dtype, slot + (size_t)u->id * r->size, sum / (double)r->width);
    for (int64_t i = 0; i < r->width; i += n) {
        n = r->width - i < RUN ? r->width - i : RUN;
        if (r->width > RUN)
            grad = sum_of(r, u, i, n, room);
        r->k->row(n, var + (size_t)i * r->size, grad, sum, hyper);
    }
}

static inline void ask_for_group(const rows *r, const group *u, const char *var,
                                 char *const *slot)
{
    size_t bytes = r->rule->by_row ? r->size : r->bytes; /* of a slot's row */

    ch__prefetch_read(part_at(r, u->first, 0), (int64_t)r->bytes);
    ch__prefetch_write(var + (size_t)u->id * r->bytes, (int64_t)r->bytes);
    for (int k = 0; k < r->rule->n_slots; k++)
        ch__prefetch_write(slot[k] + (size_t)u->id * bytes, (int64_t)bytes);
}

static rows rows_of(const ch_rule *rule, ch_dtype dtype, const ch_groups *g, ch_grad_rows grad)
{
    size_t size = ch_dtype_bytes(dtype);

    return (rows){.rule = rule,
                  .k = loops_of(dtype),
                  .dtype = dtype,
                  .width = g->scatter.width,
                  .size = size,
                  .bytes = (size_t)g->scatter.width * size,
                  .grad = grad};
}

void ch__rule_rows(const ch_rule *rule, ch_dtype dtype, const ch_groups *g, ch_ids ids,
                   ch_grad_rows grad, void *var, void *const *slot, const void *hyper, int tile,
                   void *scratch)
{
    rows     r = rows_of(rule, dtype, g, grad);
    char    *at[CH_RULE_SLOTS] = {0};
    places   p;
    uint32_t n = r.width > 0 ? group_ids(g, ids, tile, scratch, &p) : 0;

    if (n == 0)
        return;
    r.next = p.next;
    for (int k = 0; k < rule->n_slots; k++)
        at[k] = slot[k];
    for (uint32_t i = 0; i < CH_PREFETCH_ROWS && i < n; i++)
        ask_for_group(&r, &p.groups[i], var, at);
    for (uint32_t i = 0; i < n; i++) {
        const group *u = &p.groups[i];
        char        *row = (char *)var + (size_t)u->id * r.bytes;

        if (i + CH_PREFETCH_ROWS < n)
            ask_for_group(&r, u + CH_PREFETCH_ROWS, var, at);
        if (rule->by_row)
            update_by_row(&r, u, row, slot[0], hyper);
        else
            update_row(&r, u, row, at, hyper);
    }
}

void ch__rows_merge(ch_dtype dtype, const ch_groups *g, ch_ids ids, ch_grad_rows grad,
                    void *to_ids, void *to, int tile, void *scratch)
{
    rows     r = rows_of(NULL, dtype, g, grad);
    char     room[RUN * sizeof(double)];
    places   p;
    uint32_t n = group_ids(g, ids, tile, scratch, &p);
    int64_t  k;

    r.next = p.next;
    for (uint32_t i = 0; i < n; i++) {
        const group *u = &p.groups[i];
        char        *row = (char *)to + u->first * r.bytes;

        if (ids.wide)
            ((int64_t *)to_ids)[u->first] = u->id;
        else
            ((int32_t *)to_ids)[u->first] = (int32_t)u->id;
        for (int64_t j = 0; j < r.width; j += k) {
            k = piece(&r, u, j);
            memcpy(row + (size_t)j * r.size, sum_of(&r, u, j, k, room), (size_t)k * r.size);
        }
    }
}
