/* test/strategy/test_divided.c -- steps that the logical devices of a replica execute together:
 * training gives the weights of the unsharded run (divided.h).
 *
 * Each example has variables with splits, which most numbers of logical devices do not divide
 * evenly.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "divided.h"

/* ---- two layers, split by units ---- */

static ch_node *mlp_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_tanh(ch_add(ch_matmul(x, false, w[0], false), w[1]));
    x = ch_dropout(x, 0.2, 1);
    return ch_loss_mse(ch_add(ch_matmul(x, false, w[2], false), w[3]), y);
}

static const example mlp = {
    .n_in = 12,
    .n_out = 5,
    .n_vars = 4,
    .var = (const param[]){{"k1", {.rank = 2, .dim = {12, 30}}, {CH_OFF, 0}},
                           {"b1", {.rank = 1, .dim = {30}}, {0}},
                           {"k2", {.rank = 2, .dim = {30, 5}}, {0, CH_OFF}},
                           {"b2", {.rank = 1, .dim = {5}}, {CH_OFF}}},
    .loss = mlp_loss,
    .options = {.clip_global_norm = 0.1}};

/* DYN-2, TPU-4.9, TPU-5.3: 30 units on up to 8 devices, and short batches. */
static void layers_split_by_units_train_as_on_one_device(void **state)
{
    (void)state;
    check_all_numbers(&mlp);
}

static void layers_on_every_core_train_as_on_one_device(void **state)
{
    (void)state;
    check_training(&mlp, 1, 1, (int[]){4}, false);
}

static void replicas_of_two_cores_train_as_one_device(void **state)
{
    (void)state;
    check_training(&mlp, 2, 1, (int[]){2}, true);
    check_training(&mlp, 2, 1, (int[]){2}, false);
    check_training(&mlp, 2, 1, (int[]){4}, true);
}

/* ---- a classifier, split by classes, with dropout and limits of gradients ---- */

static ch_node *classifier_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_relu(ch_add(ch_matmul(x, false, w[0], false), w[1]));
    x = ch_dropout(x, 0.3, 5);
    x = ch_add(ch_matmul(x, false, w[2], false), w[3]);
    return ch_loss_sparse_categorical(x, class_of(y));
}

static const example classifier = {
    .n_in = 12,
    .n_out = 2,
    .n_vars = 4,
    .var = (const param[]){{"k1", {.rank = 2, .dim = {12, 30}}, {CH_OFF, 0}},
                           {"b1", {.rank = 1, .dim = {30}}, {0}},
                           {"k2", {.rank = 2, .dim = {30, 10}}, {CH_OFF, 0}},
                           {"b2", {.rank = 1, .dim = {10}}, {0}}},
    .loss = classifier_loss,
    .options = {.clip_global_norm = 0.5, .average = 0.9}};

static void classes_are_split_and_dropout_is_the_same(void **state)
{
    (void)state;
    check_all_numbers(&classifier);
}

/* ---- an image, split by rows ---- */

static ch_node *image_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_reshape(x, ch_shape_of(-1, 8, 6, 2));
    x = ch_mesh_split(x, 4, (int[]){CH_OFF, 0, CH_OFF, CH_OFF});
    x = ch_tanh(ch_conv2d(x, w[0], &(ch_conv_options){.padding = CH_PAD_SAME}));
    x = ch_dropout(ch_max_pool2d(x, NULL), 0.2, 2);
    x = ch_reshape(x, ch_shape_of(-1, 4 * 3 * 4));
    return ch_loss_mse(ch_matmul(x, false, w[1], false), y);
}

static const example image = {
    .n_in = 8 * 6 * 2,
    .n_out = 3,
    .n_vars = 2,
    .var =
        (const param[]){
            {"filter", {.rank = 4, .dim = {3, 3, 2, 4}}, {CH_OFF, CH_OFF, CH_OFF, CH_OFF}},
            {"k", {.rank = 2, .dim = {48, 3}}, {CH_OFF, CH_OFF}}},
    .loss = image_loss,
    .options = {.clip_global_norm = 0.1}};

static void images_split_by_rows_train_as_on_one_device(void **state)
{
    (void)state;
    check_all_numbers(&image);
}

/* ---- a table in tiles ---- */

static ch_node *table_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_dropout(ch_tanh(ch_gather(w[0], class_of(x), 0)), 0.2, 3);
    return ch_loss_mse(ch_matmul(x, false, w[1], false), y);
}

static const example rows_of_table = {
    .n_in = 2,
    .n_out = 3,
    .n_vars = 2,
    .var = (const param[]){{"table", {.rank = 2, .dim = {10, 6}}, {0, CH_OFF}},
                           {"k", {.rank = 2, .dim = {6, 3}}, {CH_OFF, CH_OFF}}},
    .loss = table_loss,
    .options = {.clip_global_norm = 0.1}};
static const example columns_of_table = {
    .n_in = 2,
    .n_out = 3,
    .n_vars = 2,
    .var = (const param[]){{"table", {.rank = 2, .dim = {10, 6}}, {CH_OFF, 0}},
                           {"k", {.rank = 2, .dim = {6, 3}}, {0, CH_OFF}}},
    .loss = table_loss,
    .options = {.clip_global_norm = 0.1}};

static void table_in_tiles_trains_as_on_one_device(void **state)
{
    (void)state;
    check_all_numbers(&rows_of_table);
    check_all_numbers(&columns_of_table);
}

/* ---- attention, split by heads ---- */

enum { TIME = 5, WIDTH = 6, HEADS = 3 };

static ch_node *heads(ch_node *x, ch_node *kernel)
{
    x = ch_reshape(ch_matmul(x, false, kernel, false), ch_shape_of(-1, TIME, HEADS, 2));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

static ch_node *attention_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    ch_node *z;

    x = ch_reshape(x, ch_shape_of(-1, TIME, WIDTH));
    z = ch_layer_norm(x, w[4], w[5], 1e-5);
    z = ch_attention(heads(z, w[0]), heads(z, w[1]), heads(z, w[2]), NULL,
                     &(ch_attention_options){.causal = true});
    z = ch_reshape(ch_transpose(z, 4, (int[]){0, 2, 1, 3}), ch_shape_of(-1, TIME, WIDTH));
    z = ch_add(x, ch_dropout(ch_matmul(z, false, w[3], false), 0.2, 4));
    return ch_loss_mse(ch_reshape(z, ch_shape_of(-1, TIME * WIDTH)), y);
}

static const example attention = {
    .n_in = TIME * WIDTH,
    .n_out = TIME * WIDTH,
    .n_vars = 6,
    .var = (const param[]){{"q", {.rank = 2, .dim = {WIDTH, WIDTH}}, {CH_OFF, 0}},
                           {"k", {.rank = 2, .dim = {WIDTH, WIDTH}}, {CH_OFF, 0}},
                           {"v", {.rank = 2, .dim = {WIDTH, WIDTH}}, {CH_OFF, 0}},
                           {"o", {.rank = 2, .dim = {WIDTH, WIDTH}}, {0, CH_OFF}},
                           {"gamma", {.rank = 1, .dim = {WIDTH}}, {CH_OFF}},
                           {"beta", {.rank = 1, .dim = {WIDTH}}, {CH_OFF}}},
    .loss = attention_loss,
    .options = {.clip_global_norm = 0.1}};

static void attention_split_by_heads_trains_as_on_one_device(void **state)
{
    (void)state;
    check_all_numbers(&attention);
}

static void replicas_with_cores_train_every_example(void **state)
{
    static const int cores[] = {2, 3, 4};

    (void)state;
    check_training(&rows_of_table, 2, 1, (int[]){1}, true);
    check_training(&image, 2, 3, cores, true);
    check_training(&rows_of_table, 2, 3, cores, true);
    check_training(&columns_of_table, 2, 3, cores, true);
    check_training(&attention, 2, 3, cores, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_split_by_units_train_as_on_one_device),
        cmocka_unit_test(layers_on_every_core_train_as_on_one_device),
        cmocka_unit_test(replicas_of_two_cores_train_as_one_device),
        cmocka_unit_test(classes_are_split_and_dropout_is_the_same),
        cmocka_unit_test(images_split_by_rows_train_as_on_one_device),
        cmocka_unit_test(table_in_tiles_trains_as_on_one_device),
        cmocka_unit_test(attention_split_by_heads_trains_as_on_one_device),
        cmocka_unit_test(replicas_with_cores_train_every_example),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
