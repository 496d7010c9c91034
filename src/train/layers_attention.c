/* train/layers_attention.c -- multi-head attention, and the transformer block.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/math.h"
#include "cohort/random.h"
#include "ops/ops.h"
#include "train/layer.h"

/* ---- attention ---- */

enum { QUERY, KEY, VALUE, OUTPUT, N_PROJECTIONS }; /* indices of the children */

typedef struct attention_self {
    int64_t heads, key_width; /* options of the caller; key_width 0: width / heads */
    int64_t width, head;      /* size of the last axis of the input, and width of a head */
    bool    causal;
    double  dropout;
} attention_self;

/* Sets the widths of the dense layers, which follow from the width of the input. */
static ch_status attention_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    attention_self *a = self;
    ch_status       rc = ch__layer_size(l, in[0], -1, &a->width);

    (void)n;
    if (rc != CH_OK)
        return rc;
    if (a->key_width == 0 && a->width % a->heads != 0)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "attention: the width %lld is not a multiple of %lld heads; change one of "
            "them, or set key_width in ch_layer_multi_head_options",
            (long long)a->width, (long long)a->heads);
    a->head = a->key_width > 0 ? a->key_width : a->width / a->heads;
    for (int i = QUERY; i <= VALUE; i++)
        ch__dense_set_units(l->child[i], a->heads * a->head);
    ch__dense_set_units(l->child[OUTPUT], a->width);
    return CH_OK;
}

/* Reshapes (N, T, heads * d) to (N, heads, T, d). join_heads is the inverse. */
static ch_node *split_heads(const attention_self *a, ch_node *x)
{
    ch_dims d;

    if (x == NULL)
        return NULL;
    d = x->dims;
    d.rank = 4;
    d.dim[2] = ch__dim(a->heads);
    d.dim[3] = ch__dim(a->head);
    return ch_transpose(ch__reshape_dims(x, &d), 4, (int[]){0, 2, 1, 3});
}

static ch_node *join_heads(const attention_self *a, ch_node *x)
{
    ch_dims d;

    x = ch_transpose(x, 4, (int[]){0, 2, 1, 3});
    if (x == NULL)
        return NULL;
    d = x->dims;
    d.rank = 3;
    d.dim[2] = ch__dim(a->heads * a->head);
    return ch__reshape_dims(x, &d);
}

static ch_node *attention_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                               bool training)
{
    attention_self *a = self;
    ch_node        *head[3], *memory = in[n > 1], *y;

    if (!ch__layer_check_width(l, s, in[0], a->width))
        return NULL;
    for (int i = QUERY; i <= VALUE; i++)
        head[i] = split_heads(
            a, ch_layer_call(l->child[i], s, i == QUERY ? in[0] : memory, training));
    y = ch_attention(head[QUERY], head[KEY], head[VALUE], n == 3 ? in[2] : NULL,
                     &(ch_attention_options){.causal = a->causal});
    y = ch_layer_call(l->child[OUTPUT], s, join_heads(a, y), training);
    return training ? ch_dropout(y, a->dropout, l->seed) : y;
}

static const ch_layer_ops attention_ops = {.type = "attention",
                                           .build = attention_build,
                                           .call = attention_call,
                                           .n_in = {1, 3},
                                           .rank = {{3, 3}, {3, 3}}};

/* Creates a dense layer without known units; attention_build or block_build sets them. */
static ch_layer *new_projection(const char *name, int bias)
{
    return ch_layer_named(name, ch_layer_dense(1, &(ch_layer_dense_options){.bias = bias}));
}

ch_layer *ch_layer_multi_head_attention(int heads, const ch_layer_multi_head_options *opt)
{
    ch_layer_multi_head_options o = opt != NULL ? *opt : (ch_layer_multi_head_options){0};
    attention_self              a = {
                     .heads = heads, .key_width = o.key_width, .causal = o.causal, .dropout = o.dropout};
    ch_layer *child[N_PROJECTIONS];

    if (heads < 1 || o.key_width < 0)
        return ch__layer_fail(
            "attention: %d heads with a key_width of %lld, want at least 1 and 0", heads,
            (long long)o.key_width);
    if (!(o.dropout >= 0 && o.dropout < 1))
        return ch__layer_fail("attention: dropout is %g, want at least 0 and less than 1",
                              o.dropout);
    child[QUERY] = new_projection("query", o.bias);
    child[KEY] = new_projection("key", o.bias);
    child[VALUE] = new_projection("value", o.bias);
    child[OUTPUT] = new_projection("output", o.bias);
    return ch__layer_new(&attention_ops, &a, sizeof(a), N_PROJECTIONS, child);
}

/* ---- transformer block ---- */

enum { NORM_1, ATTENTION, NORM_2, HIDDEN, RESULT, N_PARTS };

typedef struct block_self {
    int64_t hidden, width;
    double  dropout;
} block_self;

static ch_status block_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    block_self *b = self;
    ch_status   rc = ch__layer_size(l, in[0], -1, &b->width);

    (void)n;
    if (rc != CH_OK)
        return rc;
    ch__dense_set_units(l->child[HIDDEN], b->hidden > 0 ? b->hidden : 4 * b->width);
    ch__dense_set_units(l->child[RESULT], b->width);
    return CH_OK;
}

static ch_node *block_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                           bool training)
{
    block_self *b = self;
    ch_node    *x = in[0], *y;

    (void)n;
    if (!ch__layer_check_width(l, s, x, b->width))
        return NULL;
    y = ch_layer_call(l->child[NORM_1], s, x, training);
    x = ch_add(x, ch_layer_call(l->child[ATTENTION], s, y, training));
    y = ch_layer_call(l->child[NORM_2], s, x, training);
    y = ch_layer_call(l->child[HIDDEN], s, y, training);
    y = ch_layer_call(l->child[RESULT], s, y, training);
    return ch_add(x, training ? ch_dropout(y, b->dropout, l->seed) : y);
}

static const ch_layer_ops block_ops = {.type = "transformer",
                                       .build = block_build,
                                       .call = block_call,
                                       .n_in = {1, 1},
                                       .rank = {{3, 3}}};

static ch_layer *new_norm(const char *name, bool rms)
{
    return ch_layer_named(name, rms ? ch_layer_rms_norm(0) : ch_layer_layer_norm(0));
}

ch_layer *ch_layer_transformer_block(int heads, const ch_layer_transformer_options *opt)
{
    ch_layer_transformer_options o = opt != NULL ? *opt : (ch_layer_transformer_options){0};
    ch_activation                f = o.activation == CH_LINEAR ? CH_GELU : o.activation;
    block_self                   b = {.hidden = o.hidden, .dropout = o.dropout};
    ch_layer                    *child[N_PARTS];

    if (o.hidden < 0)
        return ch__layer_fail("transformer: hidden is %lld, want 0 or more",
                              (long long)o.hidden);
    child[ATTENTION] = ch_layer_multi_head_attention(
        heads, &(ch_layer_multi_head_options){
                   .causal = o.causal, .dropout = o.dropout, .bias = o.bias});
    if (child[ATTENTION] == NULL)
        return NULL;
    child[HIDDEN] = ch_layer_named(
        "hidden",
        ch_layer_dense(1, &(ch_layer_dense_options){.activation = f, .bias = o.bias}));
    child[RESULT] = new_projection("output", o.bias);
    child[NORM_1] = new_norm("norm_1", o.rms_norm);
    child[NORM_2] = new_norm("norm_2", o.rms_norm);
    return ch__layer_new(&block_ops, &b, sizeof(b), N_PARTS, child);
}
