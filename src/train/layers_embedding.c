/* train/layers_embedding.c -- embedding and embedding_bag: rows of a table, or sums or means of
 * them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/ops.h"
#include "strategy/strategy.h"
#include "train/layer.h"

typedef struct table_self {
    int64_t     ids, width; /* rows of the table; numbers of a row */
    ch_combiner combiner;
    bool        weighted; /* the ids have weights */
    ch_init     init;
    ch_var     *table;
} table_self;

static ch_status table_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    table_self *t = self;

    (void)n, (void)in;
    return ch_layer_weight(l,
                           &(ch_layer_weight_spec){.name = "table",
                                                   .shape = ch_shape_of(t->ids, t->width),
                                                   .init = &t->init},
                           &t->table);
}

static ch_node *embedding_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                               bool training)
{
    table_self *t = self;

    (void)l, (void)n, (void)training;
    return ch_gather(ch_var_read(s, t->table), in[0], 0);
}

/* Calls the bag. Inputs: ids, row_splits, the weights if the layer is weighted, and optionally
 * a node that has the rows of the output. */
static ch_node *bag_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                         bool training)
{
    table_self    *t = self;
    int            needed = t->weighted ? 3 : 2;
    ch_bag_options opt = {.combiner = t->combiner,
                          .weights = t->weighted ? in[2] : NULL,
                          .like = n > needed ? in[needed] : NULL};

    (void)l, (void)training;
    return ch_embedding_bag(ch_var_read(s, t->table), in[0], in[1], &opt);
}

static const ch_layer_ops embedding_ops = {
    .type = "embedding", .build = table_build, .call = embedding_call, .n_in = {1, 1}};
static const ch_layer_ops bag_ops = {.type = "embedding_bag",
                                     .build = table_build,
                                     .call = bag_call,
                                     .n_in = {2, 3},
                                     .rank = {{1, 1}, {1, 1}, {1, 0}}};
static const ch_layer_ops weighted_bag_ops = {.type = "embedding_bag",
                                              .build = table_build,
                                              .call = bag_call,
                                              .n_in = {3, 4},
                                              .rank = {{1, 1}, {1, 1}, {1, 1}, {1, 0}}};

static ch_layer *new_table(const ch_layer_ops *ops, table_self t,
                           const ch_layer_embedding_options *opt)
{
    if (t.ids < 1 || t.width < 1)
        return ch__layer_fail("%s: %lld ids of width %lld, want at least 1 of each", ops->type,
                              (long long)t.ids, (long long)t.width);
    if (t.combiner != CH_COMBINE_SUM && t.combiner != CH_COMBINE_MEAN)
        return ch__layer_fail("%s: combiner is %d, want CH_COMBINE_SUM or CH_COMBINE_MEAN",
                              ops->type, (int)t.combiner);
    t.init = ch__init_or(opt != NULL ? opt->init : NULL, ch_init_uniform(-0.05, 0.05));
    return ch__layer_new(ops, &t, sizeof(t), 0, NULL);
}

ch_layer *ch_layer_embedding(int64_t ids, int64_t width, const ch_layer_embedding_options *opt)
{
    if (opt != NULL && opt->weighted)
        return ch__layer_fail("embedding: option weighted is for ch_layer_embedding_bag only");
    return new_table(&embedding_ops, (table_self){.ids = ids, .width = width}, opt);
}

ch_layer *ch_layer_embedding_bag(int64_t ids, int64_t width, ch_combiner combiner,
                                 const ch_layer_embedding_options *opt)
{
    bool weighted = opt != NULL && opt->weighted;

    return new_table(
        weighted ? &weighted_bag_ops : &bag_ops,
        (table_self){.ids = ids, .width = width, .combiner = combiner, .weighted = weighted},
        opt);
}
