/* kernel/rule.c -- update rules: on whole arrays, and on rows by their ids.
 *
 * The first part is the table of rules and the updates of whole arrays. The second part applies
 * a rule to rows of a sparse gradient: `struct group` is a group of equal ids, `struct
 * group_index` finds the group of an id, `struct rows` is the gradient with its rule. The
 * arithmetic is in rule_loops.inc. The callers are ops/apply.c and ops/apply_rows.c.
 *
 * Invariants:
 *   1. The rows of a group are added in order of position, so results do not depend on the
 *      number of threads.
 *   2. A tile updates only rows of ids that it owns (kernel/rows.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/rule.h"

#include <math.h>
#include <string.h>

#include "base/prefetch.h"

/* clang-format off */
/* kind, name, number of slots, names of slots; is_sparse, by_row, has_norms, has_initial */
static const ch_rule rules[CH_RULES] = {
    [CH_RULE_SGD] =
        {CH_RULE_SGD, "sgd", 0, {NULL}, true, false, false, false},
    [CH_RULE_MOMENTUM] =
        {CH_RULE_MOMENTUM, "momentum", 1, {"momentum"}, true, false, false, false},
    [CH_RULE_NESTEROV] =
        {CH_RULE_NESTEROV, "nesterov", 1, {"momentum"}, true, false, false, false},
    [CH_RULE_ADAGRAD] =
        {CH_RULE_ADAGRAD, "adagrad", 1, {"accumulator"}, true, false, false, true},
    [CH_RULE_ADAGRAD_ROWS] =
        {CH_RULE_ADAGRAD_ROWS, "adagrad_rows", 1, {"accumulator"}, true, true, false, true},
    [CH_RULE_RMSPROP] =
        {CH_RULE_RMSPROP, "rmsprop", 1, {"velocity"}, false, false, false, false},
    [CH_RULE_RMSPROP_MOMENTUM] =
        {CH_RULE_RMSPROP_MOMENTUM, "rmsprop_momentum", 2,
         {"velocity", "momentum"}, false, false, false, false},
    [CH_RULE_RMSPROP_CENTERED] =
        {CH_RULE_RMSPROP_CENTERED, "rmsprop_centered", 2,
         {"velocity", "mean"}, false, false, false, false},
    [CH_RULE_RMSPROP_CENTERED_MOMENTUM] =
        {CH_RULE_RMSPROP_CENTERED_MOMENTUM, "rmsprop_centered_momentum", 3,
         {"velocity", "mean", "momentum"}, false, false, false, false},
    [CH_RULE_ADAM] =
        {CH_RULE_ADAM, "adam", 2, {"m", "v"}, true, false, false, false},
    [CH_RULE_AMSGRAD] =
        {CH_RULE_AMSGRAD, "amsgrad", 3, {"m", "v", "v_hat"}, true, false, false, false},
    [CH_RULE_ADAMAX] =
        {CH_RULE_ADAMAX, "adamax", 2, {"m", "u"}, false, false, false, false},
    [CH_RULE_FTRL] =
        {CH_RULE_FTRL, "ftrl", 2, {"accumulator", "linear"}, true, false, false, true},
    [CH_RULE_LAMB] =
        {CH_RULE_LAMB, "lamb", 2, {"m", "v"}, false, false, true, false},
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

enum { RUN = 512 }; /* elements that are added in their own type; elements of a buffer */

/* Adds x to the accumulator of a row and returns the new value. */
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

/* Multiplies the update by the trust ratio |var| / |update|; 1 if either norm is 0. */
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
 * Positions are sorted by the owner of their row (kernel/rows.h). A tile goes through its
 * positions in order and adds each to the group of its id, which it finds in a hash table. A
 * group is a linked list of positions.
 *
 * The scratch memory has the sorted positions; the groups; the hash tables, with 2 k buckets
 * for a tile of k positions; the links, by position. */

typedef struct group {
    int64_t  id;
    uint32_t first, last; /* positions */
} group;

typedef struct group_index {
    group    *groups;
    uint32_t *table; /* number of a group plus 1; 0: empty */
    uint32_t *next;  /* next position of the same group */
} group_index;

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

/* Counts the positions that a tile owns, and those of all tiles before it. */
static void count_owned(const ch_groups *g, const void *scratch, int tile, int64_t *before,
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

/* Returns the bucket of an id in a table of `size` buckets: that of its group, or an empty
 * bucket. The hash factor differs from the factor that chooses the owner. */
static inline uint32_t *bucket_of(const group_index *p, uint64_t size, int64_t id)
{
    uint64_t at = (((uint64_t)id * 0xd6e8feb86659fd93u) >> 32) * size >> 32;

    while (p->table[at] != 0 && p->groups[p->table[at] - 1].id != id)
        at = at + 1 == size ? 0 : at + 1;
    return &p->table[at];
}

static inline void add_position(const group_index *p, uint64_t size, int64_t id,
                                uint32_t position, uint32_t *n)
{
    uint32_t *at = bucket_of(p, size, id);

    if (*at == 0) {
        p->groups[*n] = (group){id, position, position};
        *at = ++*n;
    } else {
        group *old = &p->groups[*at - 1];

        p->next[old->last] = position;
        old->last = position;
    }
}

/* Groups the positions that `tile` owns. Returns the number of groups. Groups are in order of
 * their first position. */
static uint32_t group_ids(const ch_groups *g, ch_ids ids, int tile, void *scratch,
                          group_index *p)
{
    int64_t  before = 0, mine = g->scatter.n_ids;
    uint32_t n = 0;
    char    *groups = (char *)scratch + sorted_bytes(g);
    char    *table = groups + (size_t)g->scatter.n_ids * sizeof(group);
    char    *next = table + (size_t)g->scatter.n_ids * 2 * sizeof(uint32_t);

    *p = (group_index){(void *)groups, (void *)table, (void *)next};
    if (g->scatter.tiles > 1)
        count_owned(g, scratch, tile, &before, &mine);
    p->groups += before;
    p->table += 2 * before;
    memset(p->table, 0, (size_t)mine * 2 * sizeof(uint32_t));
    for (int64_t i = 0; i < g->scatter.n_ids && g->scatter.tiles == 1; i++) {
        int64_t id = ch__id(ids, i);

        if ((uint64_t)id < (uint64_t)g->scatter.n_rows)
            add_position(p, 2 * (uint64_t)mine, id, (uint32_t)i, &n);
    }
    for (int chunk = 0; chunk < g->scatter.chunks; chunk++) {
        int64_t         k;
        const uint32_t *at = ch__scatter_owned(&g->scatter, scratch, chunk, tile, &k);

        for (int64_t i = 0; i < k; i++)
            add_position(p, 2 * (uint64_t)mine, ch__id(ids, at[i]), at[i], &n);
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

/* Returns the gradient row of a position; NULL if the row is zeros. */
static inline const char *row_at(const rows *r, uint32_t position)
{
    int64_t at = r->grad.which.at != NULL ? ch__id(r->grad.which, position) : position;

    return (uint64_t)at < (uint64_t)r->grad.n
               ? (const char *)r->grad.row + (size_t)at * r->bytes
               : NULL;
}

/* Returns the gradient row of a position from byte `skip` on. If the row is zeros, only RUN
 * elements may be read. */
static inline const char *part_at(const rows *r, uint32_t position, size_t skip)
{
    static const double zeros[RUN];
    const char         *row = row_at(r, position);

    return row != NULL ? row + skip : (const char *)zeros;
}

/* Returns elements [at, at + n) of the sum of the rows of a group: in place, or in `buffer`. */
static inline const char *sum_of(const rows *r, const group *u, int64_t at, int64_t n,
                                 char *buffer)
{
    size_t   skip = (size_t)at * r->size;
    uint32_t p = u->first;

    if (u->first == u->last)
        return part_at(r, p, skip);
    memcpy(buffer, part_at(r, p, skip), (size_t)n * r->size);
    while (p != u->last) {
        p = r->next[p];
        r->k->add(n, part_at(r, p, skip), buffer);
    }
    return buffer;
}

/* Returns the elements of the next piece: at most RUN, or all if the group has a single row in
 * memory. */
static inline int64_t piece_size(const rows *r, const group *u, int64_t at)
{
    int64_t left = r->width - at;

    return left <= RUN || (u->first == u->last && row_at(r, u->first) != NULL) ? left : RUN;
}

/* Updates a row of the variable, in pieces if gradient rows must be added. */
static void update_row(const rows *r, const group *u, char *var, char *const *slot,
                       const void *hyper)
{
    char    buffer[RUN * sizeof(double)];
    void   *at[CH_RULE_SLOTS] = {0};
    int64_t n;

    for (int64_t i = 0; i < r->width; i += n) {
        size_t      skip = (size_t)i * r->size;
        const char *grad;

        n = piece_size(r, u, i);
        grad = sum_of(r, u, i, n, buffer);
        for (int k = 0; k < r->rule->n_slots; k++)
            at[k] = slot[k] + (size_t)u->id * r->bytes + skip;
        r->k->update[r->rule->kind](n, var + skip, grad, at, hyper);
    }
}

/* Updates a row for rules by row: a first pass for the sum of squares, a second for the row. */
static void update_by_row(const rows *r, const group *u, char *var, char *slot,
                          const void *hyper)
{
    char        buffer[RUN * sizeof(double)];
    const char *grad = NULL;
    double      sum = 0;
    int64_t     n;

    for (int64_t i = 0; i < r->width; i += n) {
        n = r->width - i < RUN ? r->width - i : RUN;
        grad = sum_of(r, u, i, n, buffer);
        sum += r->k->squares(n, grad, hyper);
    }
    sum = accumulate(r->dtype, slot + (size_t)u->id * r->size, sum / (double)r->width);
    for (int64_t i = 0; i < r->width; i += n) {
        n = r->width - i < RUN ? r->width - i : RUN;
        if (r->width > RUN)
            grad = sum_of(r, u, i, n, buffer);
        r->k->row(n, var + (size_t)i * r->size, grad, sum, hyper);
    }
}

static inline void prefetch_group(const rows *r, const group *u, const char *var,
                                  char *const *slot)
{
    size_t bytes = r->rule->by_row ? r->size : r->bytes; /* of a row of the slot */

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
    rows        r = rows_of(rule, dtype, g, grad);
    char       *at[CH_RULE_SLOTS] = {0};
    group_index p;
    uint32_t    n = r.width > 0 ? group_ids(g, ids, tile, scratch, &p) : 0;

    if (n == 0)
        return;
    r.next = p.next;
    for (int k = 0; k < rule->n_slots; k++)
        at[k] = slot[k];
    for (uint32_t i = 0; i < CH_PREFETCH_ROWS && i < n; i++)
        prefetch_group(&r, &p.groups[i], var, at);
    for (uint32_t i = 0; i < n; i++) {
        const group *u = &p.groups[i];
        char        *row = (char *)var + (size_t)u->id * r.bytes;

        if (i + CH_PREFETCH_ROWS < n)
            prefetch_group(&r, u + CH_PREFETCH_ROWS, var, at);
        if (rule->by_row)
            update_by_row(&r, u, row, slot[0], hyper);
        else
            update_row(&r, u, row, at, hyper);
    }
}

void ch__rows_merge(ch_dtype dtype, const ch_groups *g, ch_ids ids, ch_grad_rows grad,
                    void *to_ids, void *to, int tile, void *scratch)
{
    rows        r = rows_of(NULL, dtype, g, grad);
    char        buffer[RUN * sizeof(double)];
    group_index p;
    uint32_t    n = group_ids(g, ids, tile, scratch, &p);
    int64_t     k;

    r.next = p.next;
    for (uint32_t i = 0; i < n; i++) {
        const group *u = &p.groups[i];
        char        *row = (char *)to + u->first * r.bytes;

        if (ids.wide)
            ((int64_t *)to_ids)[u->first] = u->id;
        else
            ((int32_t *)to_ids)[u->first] = (int32_t)u->id;
        for (int64_t j = 0; j < r.width; j += k) {
            k = piece_size(&r, u, j);
            memcpy(row + (size_t)j * r.size, sum_of(&r, u, j, k, buffer), (size_t)k * r.size);
        }
    }
}
