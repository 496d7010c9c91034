/* ops/apply.c -- updates of whole variables: apply, apply_norms, clear_if, round_over.
 *
 * apply takes the variable, a dense gradient, the hyperparameters and the slots. The arithmetic
 * is in kernel/rule.h. A rule with norms (LAMB) needs sums over the whole variable before it
 * can update an element: apply computes them in an earlier phase, or gets them as an input if
 * the variable is in shards (apply_norms computes the share of a shard).
 *
 * Invariant: these ops must not fail at run time, because the planner lets them write over a
 * variable and its slots when no later call reads the old values.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/apply.h"

#include <string.h>

#include "graph/step.h"
#include "kernel/block.h"
#include "ops/apply_rule.h"
#include "ops/ops.h"

/* ---- functions of apply and apply_rows ---- */

/* Returns true if the slot has the shape of the variable or, for a rule by row, one element for
 * each row. */
static bool slot_fits(const ch_rule *r, const ch_dims *var, const ch_dims *slot)
{
    if (!r->by_row)
        return ch__dims_same(var, slot);
    return slot->rank == (var->rank > 0) &&
           (var->rank == 0 || ch__dim_same(var->dim[0], slot->dim[0]));
}

ch_status ch__infer_apply(ch_infer *c, const char *name, const ch_rule **rule, int hyper)
{
    const ch_rule *r = *rule = ch__rule_find(name);
    ch_status      rc = CH_OK;

    if (r == NULL)
        return ch__infer_fail(c, "rule \"%s\" does not exist", name != NULL ? name : "");
    if (c->n_in != hyper + 1 + r->n_slots)
        return ch__infer_fail(c, "there are %d inputs, want %d for rule %s", c->n_in,
                              hyper + 1 + r->n_slots, r->name);
    if (c->dtype[0] != CH_F32 && c->dtype[0] != CH_F64)
        return ch__infer_fail(c, "the variable is %s, want f32 or f64",
                              ch_dtype_name(c->dtype[0]));
    for (int i = hyper - 1; i < c->n_in; i++)
        if (c->dtype[i] != c->dtype[0])
            return ch__infer_fail(c, "input %d is %s, want %s, the dtype of the variable", i,
                                  ch_dtype_name(c->dtype[i]), ch_dtype_name(c->dtype[0]));
    if (c->in[hyper].rank != 1 || !ch__dim_is(c->in[hyper].dim[0], CH_HYPERS))
        return ch__infer_fail(c, "input %d must be a vector of %d hyperparameters", hyper,
                              CH_HYPERS);
    for (int k = 0; k < r->n_slots; k++)
        if (!slot_fits(r, &c->in[0], &c->in[hyper + 1 + k]))
            return ch__infer_fail(c, "the shape of slot %s does not match the variable",
                                  r->slot[k]);
    for (int k = 0; k <= r->n_slots && rc == CH_OK; k++)
        rc = ch__infer_like(c, k, k == 0 ? 0 : hyper + k);
    return rc;
}

void ch__apply_over(const ch_rule *r, int hyper, ch_prep *p)
{
    for (int k = 0; k <= r->n_slots; k++)
        p->over[k] = 1u << (k == 0 ? 0 : hyper + k);
}

ch_status ch__apply_factors(const ch_node *n, const ch_rule *r, int hyper, bool by_id,
                            bool is_whole, ch_factors *f)
{
    int x[CH_MAX_RANK] = {0}, rows[CH_MAX_RANK], rank = n->dims.rank;

    for (int k = 0; k < rank; k++) {
        bool is_fixed = is_whole || (k > 0 && r->by_row);

        x[k] = rows[k] = ch__factor(f, is_fixed ? CH_FIX : k == 0 && by_id ? CH_IDX : CH_PAR);
    }
    if (by_id) {
        rows[0] = ch__factor(f, CH_FIX);
        ch__factor_map(f, hyper - 2, 1, rows);
    }
    ch__factor_map(f, 0, rank, x);
    ch__factor_map(f, hyper - 1, rank, rows);
    for (int k = 0; k <= r->n_slots; k++) {
        int like = k > 0 && r->by_row && rank > 0 ? 1 : rank;

        if (k > 0)
            ch__factor_map(f, hyper + k, like, x);
        (void)ch__factor_out(f, like, x);
    }
    return CH_OK;
}

bool ch__hyper_applies(ch_dtype dtype, const void *hyper)
{
    if (dtype == CH_F64)
        return ((const double *)hyper)[CH_HYPER_APPLY] != 0;
    return ((const float *)hyper)[CH_HYPER_APPLY] != 0;
}

ch_node *ch__apply_node(const void *caller, const ch_op *op, const void *attrs,
                        const ch_rule *r, int n, ch_node *const *in, ch_node **slot)
{
    ch_node *all[5 + CH_RULE_SLOTS], *y;

    for (int i = 0; i < n; i++)
        all[i] = in[i];
    for (int i = 0; i < r->n_slots; i++)
        all[n + i] = slot[i];
    y = ch__node_at(caller, op, attrs, n + r->n_slots, all);
    for (int i = 0; i < r->n_slots; i++)
        slot[i] = y != NULL ? ch__out(y, 1 + i) : NULL;
    return y;
}

/* ---- apply ---- */

/* Indices of inputs. With `has_norms` the norms are input 1, and the indices of all inputs
 * after VAR are larger by 1. */
enum { VAR, GRAD, HYPER, SLOTS, NORMS = GRAD };
/* Elements that a cut leaves together, so that tiles begin at cache lines. */
enum { BLOCK = 64 };

typedef struct apply_attrs {
    const char *rule;
    bool        has_norms; /* the norms are an input, because this is a shard of a variable */
} apply_attrs;

static const ch_attr apply_attr_rows[] = {
    CH_ATTR_TEXT(apply_attrs, rule),
    CH_ATTR_BOOL(apply_attrs, has_norms),
    CH_ATTR_END,
};

static ch_status apply_infer(ch_infer *c)
{
    const apply_attrs *a = c->attrs;
    const ch_rule     *r = NULL;
    int                shift = a->has_norms;
    ch_status          rc;

    if (c->n_in < SLOTS + shift)
        return ch__infer_fail(c, "there are %d inputs, want %d or more", c->n_in,
                              SLOTS + shift);
    rc = ch__infer_apply(c, a->rule, &r, HYPER + shift);
    if (rc != CH_OK)
        return rc;
    if (a->has_norms && r != NULL && !r->has_norms)
        return ch__infer_fail(c, "rule %s has no norms", r->name);
    if (a->has_norms && r != NULL &&
        (c->dtype[NORMS] != CH_F64 || c->in[NORMS].rank != 1 ||
         !ch__dim_is(c->in[NORMS].dim[0], 2)))
        return ch__infer_fail(c, "input %d must be a vector of 2 norms in f64", NORMS);
    if (!ch__dims_same(&c->in[VAR], &c->in[GRAD + shift]))
        return ch__infer_fail(c, "the gradient must have the shape of the variable");
    return CH_OK;
}

typedef struct apply_state {
    const ch_rule *rule;
    ch_dtype       dtype;
    int            shift;          /* added to the indices of inputs: 1 with norms, else 0 */
    bool           adds_norms;     /* the kernel computes the norms, in phase 0 */
    int64_t        n, rows, width; /* elements, rows, elements of a row */
    int64_t        block;          /* elements that a cut leaves together */
    int            tiles;
    size_t         size; /* bytes of an element */
} apply_state;

/* Phases: without norms, a single phase updates all. With norms that the kernel computes, phase
 * 0 updates the slots and computes the norms of each tile; phase 1 updates the variable. */
static ch_status apply_prepare(const ch_node *n, ch_prep *p)
{
    const apply_attrs *a = ch__attrs(n);
    apply_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("apply");
    s->rule = ch__rule_find(a->rule);
    s->shift = a->has_norms;
    s->adds_norms = s->rule->has_norms && !a->has_norms;
    s->dtype = n->dtype;
    s->size = ch_dtype_bytes(n->dtype);
    s->n = ch__count(n);
    s->rows = n->dims.rank > 0 ? n->dims.dim[0].n : 1;
    s->width = s->rows > 0 ? s->n / s->rows : 0;
    s->block = s->rule->by_row && s->width > 0 ? s->width : BLOCK;
    s->tiles =
        ch__tile_count((s->n + s->block - 1) / s->block, s->block * (2 + 2 * s->rule->n_slots));
    p->n_phases = s->adds_norms ? 2 : 1;
    p->tiles[0] = p->tiles[1] = s->tiles;
    p->scratch_bytes = s->adds_norms ? (size_t)s->tiles * 2 * sizeof(double) : 0;
    ch__apply_over(s->rule, HYPER + s->shift, p);
    return CH_OK;
}

/* The elements of a tile. */
typedef struct part {
    int64_t     n;
    void       *var;
    void       *slot[CH_RULE_SLOTS];
    const void *grad;
} part;

/* Returns the elements of a tile. If `first`, copies old values to outputs that are not the
 * memory of their inputs. */
static part part_of(const ch_call *c, const apply_state *s, int tile, bool first)
{
    int64_t from, to, rows, blocks = (s->n + s->block - 1) / s->block;
    part    p;

    ch__tile_range(blocks, s->tiles, tile, &from, &to);
    from *= s->block;
    to = to * s->block < s->n ? to * s->block : s->n;
    rows = s->n > 0 ? (to - from) / s->block : s->rows; /* for a rule by row: block is a row */
    p = (part){.n = to - from,
               .grad = (const char *)c->in[GRAD + s->shift] + (size_t)from * s->size};
    for (int k = 0; k <= s->rule->n_slots; k++) {
        bool        row = k > 0 && s->rule->by_row;
        size_t      skip = (size_t)(row ? from / s->block : from) * s->size;
        size_t      bytes = (size_t)(row ? rows : p.n) * s->size;
        const char *in = c->in[k == 0 ? VAR : HYPER + s->shift + k];
        char       *out = c->out[k];

        if (first && in != out)
            memcpy(out + skip, in + skip, bytes);
        *(k == 0 ? &p.var : &p.slot[k - 1]) = out + skip;
    }
    return p;
}

/* Adds the norms of all tiles in order. */
static void add_norms(int tiles, const double *each, double norm[2])
{
    norm[0] = norm[1] = 0;
    for (int i = 0; i < tiles; i++) {
        norm[0] += each[2 * i];
        norm[1] += each[2 * i + 1];
    }
}

static ch_status apply_run(const ch_call *c, ch_kernel_tile t)
{
    const apply_state *s = c->state;
    const void        *hyper = c->in[HYPER + s->shift];
    part               p = part_of(c, s, t.index, t.phase == 0);
    double            *each = c->scratch, norm[2] = {0};

    if (!ch__hyper_applies(s->dtype, hyper))
        return CH_OK;
    if (!s->rule->has_norms) {
        ch__rule_dense(s->rule, s->dtype, p.n, s->width, p.var, p.grad, p.slot, hyper);
    } else if (!s->adds_norms) {
        ch__rule_norms(s->dtype, p.n, p.var, p.grad, p.slot, hyper, norm); /* updates slots */
        ch__rule_finish(s->dtype, p.n, p.var, p.slot, hyper, c->in[NORMS]);
    } else if (t.phase == 0) {
        each[2 * t.index] = each[2 * t.index + 1] = 0;
        ch__rule_norms(s->dtype, p.n, p.var, p.grad, p.slot, hyper, &each[2 * t.index]);
    } else {
        add_norms(s->tiles, each, norm);
        ch__rule_finish(s->dtype, p.n, p.var, p.slot, hyper, norm);
    }
    return CH_OK;
}

static ch_status apply_factors(const ch_node *n, ch_factors *f)
{
    const apply_attrs *a = ch__attrs(n);
    const ch_rule     *r = ch__rule_find(a->rule);

    return ch__apply_factors(n, r, HYPER + a->has_norms, false, r->has_norms && !a->has_norms,
                             f);
}

/* A rule with norms: computes the norms in a call of its own, whose partial results are
 * sums. */
static bool apply_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    const apply_attrs *a = ch__attrs(n);
    const ch_rule     *r = ch__rule_find(a->rule);
    ch_node           *all[SLOTS + 1 + CH_RULE_SLOTS];
    ch_node           *norms, *y;

    (void)s;
    if (!r->has_norms || a->has_norms)
        return false;
    norms = ch__node(&ch__op_apply_norms, a, n->n_in, in);
    all[VAR] = in[VAR];
    all[NORMS] = norms;
    for (int i = GRAD; i < n->n_in; i++)
        all[i + 1] = in[i];
    y = ch__node(&ch__op_apply, &(apply_attrs){a->rule, true}, n->n_in + 1, all);
    for (int i = 0; i < n->n_out && y != NULL; i++)
        out[i] = ch__out(y, i);
    return y != NULL;
}

static const ch_kernel apply_plain = {"plain", .prepare = apply_prepare, .run = apply_run};

const ch_op ch__op_apply = {
    .name = "apply",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .attrs = apply_attr_rows,
    .attrs_bytes = sizeof(apply_attrs),
    .infer = apply_infer,
    .factors = apply_factors,
    .expand = apply_expand,
    .kernels = (const ch_kernel *const[]){&apply_plain, NULL},
};

ch_node *ch__apply(ch_rule_kind rule, ch_node *var, ch_node *grad, ch_node *norms,
                   ch_node *hyper, ch_node **slot)
{
    const ch_rule *r = ch__rule(rule);
    ch_node       *plain[] = {var, grad, hyper}, *given[] = {var, norms, grad, hyper};

    return ch__apply_node(__builtin_return_address(0), &ch__op_apply,
                          &(apply_attrs){r->name, norms != NULL}, r, SLOTS + (norms != NULL),
                          norms != NULL ? given : plain, slot);
}

/* ---- apply_norms ---- */

static ch_status apply_norms_infer(ch_infer *c)
{
    const apply_attrs *a = c->attrs;
    const ch_rule     *r = ch__rule_find(a->rule);

    if (r == NULL || !r->has_norms || a->has_norms)
        return ch__infer_fail(c, "rule \"%s\" has no norms to compute",
                              a->rule != NULL ? a->rule : "");
    if (c->n_in != SLOTS + r->n_slots)
        return ch__infer_fail(c, "there are %d inputs, want %d for rule %s", c->n_in,
                              SLOTS + r->n_slots, r->name);
    for (int i = 0; i < c->n_in; i++) {
        if (c->dtype[i] != c->dtype[VAR] || (c->dtype[i] != CH_F32 && c->dtype[i] != CH_F64))
            return ch__infer_fail(c, "input %d is %s, want f32 or f64, as the variable is", i,
                                  ch_dtype_name(c->dtype[i]));
        if (i != HYPER && !ch__dims_same(&c->in[VAR], &c->in[i]))
            return ch__infer_fail(c, "input %d must have the shape of the variable", i);
    }
    if (c->in[HYPER].rank != 1 || !ch__dim_is(c->in[HYPER].dim[0], CH_HYPERS))
        return ch__infer_fail(c, "input %d must be a vector of %d hyperparameters", HYPER,
                              CH_HYPERS);
    return ch__infer_out(c, 0, CH_F64, 1, (ch_dim[]){ch__dim(2)});
}

typedef struct norms_state {
    ch_dtype dtype;
    int      n_slots;
    int64_t  n;
    int      tiles;
} norms_state;

static ch_status apply_norms_prepare(const ch_node *n, ch_prep *p)
{
    const apply_attrs *a = ch__attrs(n);
    norms_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("apply_norms");
    s->dtype = n->in[VAR]->dtype;
    s->n_slots = ch__rule_find(a->rule)->n_slots;
    s->n = ch__count(n->in[VAR]);
    s->tiles = ch__tile_count((s->n + BLOCK - 1) / BLOCK, 8 * BLOCK);
    p->n_phases = 2;
    p->tiles[0] = s->tiles;
    p->tiles[1] = 1;
    p->scratch_bytes = (size_t)s->tiles * 2 * sizeof(double);
    return CH_OK;
}

/* Adds the norms of elements [from, to) to norm. The rule updates slots, so it gets copies of
 * them; the slots themselves do not change. */
static void norms_of(const ch_call *c, int64_t from, int64_t to, double norm[2])
{
    enum { RUN = 256 };
    const norms_state *s = c->state;
    size_t             size = ch_dtype_bytes(s->dtype);
    double             buffer[CH_RULE_SLOTS][RUN];
    void              *slot[CH_RULE_SLOTS];

    for (int64_t i = from; i < to; i += RUN) {
        int64_t n = to - i < RUN ? to - i : RUN;
        size_t  skip = (size_t)i * size;

        for (int k = 0; k < s->n_slots; k++) {
            slot[k] = buffer[k];
            memcpy(slot[k], (const char *)c->in[SLOTS + k] + skip, (size_t)n * size);
        }
        ch__rule_norms(s->dtype, n, (const char *)c->in[VAR] + skip,
                       (const char *)c->in[GRAD] + skip, slot, c->in[HYPER], norm);
    }
}

static ch_status apply_norms_run(const ch_call *c, ch_kernel_tile t)
{
    const norms_state *s = c->state;
    double            *each = c->scratch;
    int64_t            from, to;

    if (t.phase == 1) {
        add_norms(s->tiles, each, c->out[0]);
        return CH_OK;
    }
    each[2 * t.index] = each[2 * t.index + 1] = 0;
    ch__tile_range((s->n + BLOCK - 1) / BLOCK, s->tiles, t.index, &from, &to);
    to = to * BLOCK < s->n ? to * BLOCK : s->n;
    if (ch__hyper_applies(s->dtype, c->in[HYPER]))
        norms_of(c, from * BLOCK, to, &each[2 * t.index]);
    return CH_OK;
}

static ch_status apply_norms_factors(const ch_node *n, ch_factors *f)
{
    int x[CH_MAX_RANK] = {0}, rank = n->in[VAR]->dims.rank;

    for (int k = 0; k < rank; k++)
        x[k] = ch__factor(f, CH_RED);
    for (int i = 0; i < n->n_in; i++)
        if (i != HYPER)
            ch__factor_map(f, i, rank, x);
    return ch__factor_out(f, 1, (int[]){-1});
}

static const ch_kernel apply_norms_plain = {"plain", .prepare = apply_norms_prepare,
                                            .run = apply_norms_run};

const ch_op ch__op_apply_norms = {
    .name = "apply_norms",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD,
    .attrs = apply_attr_rows,
    .attrs_bytes = sizeof(apply_attrs),
    .infer = apply_norms_infer,
    .factors = apply_norms_factors,
    .kernels = (const ch_kernel *const[]){&apply_norms_plain, NULL},
};

bool ch__norms_reads_variable(int k)
{
    return k == VAR || k >= SLOTS;
}

ch_node *ch__apply_norms(ch_rule_kind rule, ch_node *var, ch_node *grad, ch_node *hyper,
                         ch_node *const *slot)
{
    const ch_rule *r = ch__rule(rule);
    ch_node       *in[SLOTS + CH_RULE_SLOTS] = {var, grad, hyper};

    for (int i = 0; i < r->n_slots; i++)
        in[SLOTS + i] = slot[i];
    return ch__node(&ch__op_apply_norms, &(apply_attrs){.rule = r->name}, SLOTS + r->n_slots,
                    in);
}

/* ---- clear_if ---- */

static ch_status clear_if_infer(ch_infer *c)
{
    if (c->dtype[1] != CH_BOOL || c->in[1].rank != 0)
        return ch__infer_fail(c, "input 1 must be a bool scalar");
    return ch__infer_like(c, 0, 0);
}

typedef struct clear_state {
    int64_t bytes;
    int     tiles;
} clear_state;

static ch_status clear_if_prepare(const ch_node *n, ch_prep *p)
{
    clear_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("clear_if");
    s->bytes = ch__bytes(n);
    s->tiles = ch__tile_count((s->bytes + BLOCK - 1) / BLOCK, BLOCK / 4);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    p->over[0] = 1;
    return CH_OK;
}

static ch_status clear_if_run(const ch_call *c, ch_kernel_tile t)
{
    const clear_state *s = c->state;
    int64_t            from, to;

    ch__tile_range(s->bytes, s->tiles, t.index, &from, &to);
    if (*(const bool *)c->in[1])
        memset((char *)c->out[0] + from, 0, (size_t)(to - from));
    else if (c->out[0] != c->in[0])
        memcpy((char *)c->out[0] + from, (const char *)c->in[0] + from, (size_t)(to - from));
    return CH_OK;
}

static const ch_kernel clear_if_plain = {"plain", .prepare = clear_if_prepare,
                                         .run = clear_if_run};

const ch_op ch__op_clear_if = {
    .name = "clear_if",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .infer = clear_if_infer,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&clear_if_plain, NULL},
};

ch_node *ch__clear_if(ch_node *x, ch_node *when)
{
    return ch__node(&ch__op_clear_if, NULL, 2, (ch_node *[]){x, when});
}

/* ---- round_over: `wide` rounded to 16 bits, written over x; x itself is not read ---- */

static ch_status round_over_infer(ch_infer *c)
{
    if (c->dtype[0] != CH_BF16 && c->dtype[0] != CH_F16)
        return ch__infer_fail(c, "input 0 is %s, want bf16 or f16", ch_dtype_name(c->dtype[0]));
    if (c->dtype[1] != CH_F32 || !ch__dims_same(&c->in[0], &c->in[1]))
        return ch__infer_fail(c, "input 1 must be f32 and have the shape of input 0");
    return ch__infer_like(c, 0, 0);
}

typedef struct round_state {
    int64_t n;
    int     tiles;
} round_state;

static ch_status round_over_prepare(const ch_node *n, ch_prep *p)
{
    round_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("round_over");
    s->n = ch__count(n);
    s->tiles = ch__tile_count((s->n + BLOCK - 1) / BLOCK, 2 * BLOCK);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    p->over[0] = 1;
    return CH_OK;
}

static ch_status round_over_run(const ch_call *c, ch_kernel_tile t)
{
    const round_state *s = c->state;
    int64_t            from, to;

    ch__tile_range(s->n, s->tiles, t.index, &from, &to);
    ch__blocks()->narrow[c->node->dtype](to - from,
                                         (const void *[]){(const float *)c->in[1] + from},
                                         (uint16_t *)c->out[0] + from, NULL);
    return CH_OK;
}

static const ch_kernel round_over_plain = {"plain", .prepare = round_over_prepare,
                                           .run = round_over_run};

const ch_op ch__op_round_over = {
    .name = "round_over",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .infer = round_over_infer,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&round_over_plain, NULL},
};

ch_node *ch__round_over(ch_node *x, ch_node *wide)
{
    return ch__node(&ch__op_round_over, NULL, 2, (ch_node *[]){x, wide});
}
