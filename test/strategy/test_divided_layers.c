/* test/strategy/test_divided_layers.c -- layers on several logical devices train as on one
 * device (divided.h).
 *
 * The splits are those that a program would choose: images by rows, by columns or by both,
 * sequences by time, kernels by heads or units, tables by ids or columns. Every example has
 * dropout, and limits the global norm of the gradients.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "divided.h"

#define ANY                                                                                    \
    {                                                                                          \
        .rank = 0                                                                              \
    } /* the shape of a variable of a layer */

static ch_node *mean_square(ch_node *x, ch_node *y, ch_node *const *w)
{
    (void)w;
    return ch_loss_mse(x, y);
}

static ch_node *cross_entropy(ch_node *x, ch_node *y, ch_node *const *w)
{
    (void)w;
    return ch_loss_sparse_categorical(x, class_of(y));
}

/* ---- images ---- */

enum { HEIGHT = 9, BREADTH = 7, CHANNELS = 2 };

/* How axes 1 and 2 of an image lie on the mesh (ch_mesh_split). */
typedef struct image_split {
    int rows, columns;
} image_split;

static ch_node *forward_images(ch_step *s, int n, ch_node *const *in, bool training,
                               ch_layer *const *layer, void *arg)
{
    const image_split *split = arg;

    (void)n;
    return ch_layer_call(
        layer[0], s,
        ch_mesh_split(in[0], 4, (int[]){CH_OFF, split->rows, split->columns, CH_OFF}),
        training);
}

static ch_layer *network_of_images(image_split *split)
{
    const ch_layer_conv_options same = {.padding = CH_PAD_SAME}, strided = {.stride = {2, 2}};
    ch_layer                   *net = ch_layer_sequential(
                          "net", 8,
                          (ch_layer *[]){ch_layer_conv2d(4, 3, 3, &same), ch_layer_batch_norm(NULL),
                                         ch_layer_activation(CH_TANH), ch_layer_conv2d(3, 2, 2, &strided),
                                         ch_layer_average_pool(2, 2, 1, 1, CH_PAD_SAME), ch_layer_dropout(0.2),
                                         ch_layer_flatten(), ch_layer_dense(10, NULL)});

    return ch_layer_function("images", forward_images, split, 1, &net);
}

static ch_layer *images_by_rows(void)
{
    static image_split split = {0, CH_OFF};

    return network_of_images(&split);
}

static ch_layer *images_by_columns(void)
{
    static image_split split = {CH_OFF, 0};

    return network_of_images(&split);
}

static ch_layer *images_by_both(void)
{
    static image_split split = {0, 1};

    return network_of_images(&split);
}

static const example images = {.n_in = HEIGHT * BREADTH * CHANNELS,
                               .n_out = 1,
                               .row = {.rank = 3, .dim = {HEIGHT, BREADTH, CHANNELS}},
                               .loss = cross_entropy,
                               .options = {.clip_global_norm = 0.5}};

/* TPU-4.5, TPU-4.9: 9 rows and 7 columns on up to 8 devices. */
static void images_split_by_rows_or_columns_train_batch_norm_too(void **state)
{
    example e = images;

    (void)state;
    e.layer = images_by_rows;
    check_all_numbers(&e);
    e.layer = images_by_columns;
    check_all_numbers(&e);
}

static void images_split_by_rows_and_columns_train_as_on_one_device(void **state)
{
    static const int mesh[][3] = {{2, 1}, {1, 3}, {2, 2}, {3, 2}, {2, 4}};
    example          e = images;

    (void)state;
    e.layer = images_by_both;
    check_meshes(&e, 5, mesh);
}

/* ---- sequences ---- */

enum { TIME = 5, WIDTH = 6, HEADS = 3 };

static ch_layer *block(void)
{
    return ch_layer_transformer_block(
        HEADS, &(ch_layer_transformer_options){.hidden = 10, .causal = true, .dropout = 0.2});
}

static ch_node *forward_by_time(ch_step *s, int n, ch_node *const *in, bool training,
                                ch_layer *const *layer, void *arg)
{
    (void)n, (void)arg;
    return ch_layer_call(layer[0], s, ch_mesh_split(in[0], 3, (int[]){CH_OFF, 0, CH_OFF}),
                         training);
}

/* Transforms (rows, time, width) to scores of the 10 classes. */
static ch_layer *network_of_blocks(void)
{
    return ch_layer_sequential("net", 4,
                               (ch_layer *[]){block(), ch_layer_named("second", block()),
                                              ch_layer_flatten(), ch_layer_dense(10, NULL)});
}

static ch_layer *blocks_by_time(void)
{
    ch_layer *net = network_of_blocks();

    return ch_layer_function("by_time", forward_by_time, NULL, 1, &net);
}

static const example by_time = {.n_in = TIME * WIDTH,
                                .n_out = 1,
                                .layer = blocks_by_time,
                                .row = {.rank = 2, .dim = {TIME, WIDTH}},
                                .loss = cross_entropy,
                                .options = {.clip_global_norm = 0.5}};

static void blocks_split_by_time_train_as_on_one_device(void **state)
{
    (void)state;
    check_all_numbers(&by_time);
}

static ch_layer *net_of_block(void)
{
    return ch_layer_sequential(
        "net", 3, (ch_layer *[]){block(), ch_layer_flatten(), ch_layer_dense(10, NULL)});
}

static const param of_heads[] = {{"transformer/attention/query/kernel", ANY, {CH_OFF, 0}},
                                 {"transformer/attention/query/bias", ANY, {0}},
                                 {"transformer/attention/key/kernel", ANY, {CH_OFF, 0}},
                                 {"transformer/attention/key/bias", ANY, {0}},
                                 {"transformer/attention/value/kernel", ANY, {CH_OFF, 0}},
                                 {"transformer/attention/value/bias", ANY, {0}},
                                 {"transformer/attention/output/kernel", ANY, {0, CH_OFF}},
                                 {"transformer/hidden/kernel", ANY, {CH_OFF, 0}},
                                 {"transformer/hidden/bias", ANY, {0}},
                                 {"transformer/output/kernel", ANY, {0, CH_OFF}}};

static const example by_heads = {.n_in = TIME * WIDTH,
                                 .n_out = 1,
                                 .n_vars = sizeof(of_heads) / sizeof(of_heads[0]),
                                 .var = of_heads,
                                 .layer = net_of_block,
                                 .row = {.rank = 2, .dim = {TIME, WIDTH}},
                                 .loss = cross_entropy,
                                 .options = {.clip_global_norm = 0.5, .average = 0.9}};

static void block_split_by_heads_and_units_trains_as_on_one_device(void **state)
{
    (void)state;
    check_all_numbers(&by_heads);
}

static void lamb_trains_split_kernels_with_the_norms_of_the_whole(void **state)
{
    example e = by_heads;

    (void)state;
    e.is_lamb = true;
    check_all_numbers(&e);
}

static ch_layer *lstm_of_sequence(void)
{
    return ch_layer_sequential(
        "net", 4,
        (ch_layer *[]){ch_layer_lstm(5, &(ch_layer_recurrent_options){.return_sequence = true}),
                       ch_layer_gru(4, NULL), ch_layer_dropout(0.2), ch_layer_dense(3, NULL)});
}

static const example lstm = {.n_in = TIME * WIDTH,
                             .n_out = 3,
                             .n_vars = 6,
                             .var = (const param[]){{"lstm/kernel", ANY, {CH_OFF, 0}},
                                                    {"lstm/recurrent_kernel", ANY, {CH_OFF, 0}},
                                                    {"lstm/bias", ANY, {0}},
                                                    {"gru/kernel", ANY, {CH_OFF, 0}},
                                                    {"gru/recurrent_kernel", ANY, {0, CH_OFF}},
                                                    {"gru/bias", ANY, {CH_OFF, 0}}},
                             .layer = lstm_of_sequence,
                             .row = {.rank = 2, .dim = {TIME, WIDTH}},
                             .loss = mean_square,
                             .options = {.clip_global_norm = 0.1}};

static void recurrent_layers_with_split_kernels_train_as_on_one_device(void **state)
{
    (void)state;
    check_all_numbers(&lstm);
}

/* ---- embeddings ---- */

static ch_node *forward_classes(ch_step *s, int n, ch_node *const *in, bool training,
                                ch_layer *const *layer, void *arg)
{
    (void)n, (void)arg;
    return ch_layer_call(layer[0], s, class_of(in[0]), training);
}

static ch_layer *table_of_classes(void)
{
    ch_layer *net = ch_layer_sequential(
        "net", 4,
        (ch_layer *[]){ch_layer_embedding(10, 6, NULL), ch_layer_dropout(0.2),
                       ch_layer_activation(CH_TANH), ch_layer_dense(3, NULL)});

    return ch_layer_function("classes", forward_classes, NULL, 1, &net);
}

static const example by_ids = {.n_in = 2,
                               .n_out = 3,
                               .n_vars = 2,
                               .var = (const param[]){{"net/embedding/table", ANY, {0, CH_OFF}},
                                                      {"net/dense/kernel", ANY, {0, CH_OFF}}},
                               .layer = table_of_classes,
                               .row = {.rank = 1, .dim = {2}},
                               .loss = mean_square,
                               .options = {.clip_global_norm = 0.1}};
static const example by_columns = {
    .n_in = 2,
    .n_out = 3,
    .n_vars = 2,
    .var = (const param[]){{"net/embedding/table", ANY, {CH_OFF, 0}},
                           {"net/dense/kernel", ANY, {CH_OFF, 0}}},
    .layer = table_of_classes,
    .row = {.rank = 1, .dim = {2}},
    .loss = mean_square,
    .options = {.clip_global_norm = 0.1}};

static void embeddings_in_tiles_train_as_on_one_device(void **state)
{
    (void)state;
    check_all_numbers(&by_ids);
    check_all_numbers(&by_columns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_split_by_rows_or_columns_train_batch_norm_too),
        cmocka_unit_test(images_split_by_rows_and_columns_train_as_on_one_device),
        cmocka_unit_test(blocks_split_by_time_train_as_on_one_device),
        cmocka_unit_test(block_split_by_heads_and_units_trains_as_on_one_device),
        cmocka_unit_test(lamb_trains_split_kernels_with_the_norms_of_the_whole),
        cmocka_unit_test(recurrent_layers_with_split_kernels_train_as_on_one_device),
        cmocka_unit_test(embeddings_in_tiles_train_as_on_one_device),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
