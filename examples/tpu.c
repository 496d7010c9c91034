/* examples/tpu.c -- the programs of the page of TPUStrategy: a sum on one core, images in tiles
 * on all cores, and labels that every core has.
 *
 *     ./tpu
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cores.h"

enum { IMAGES = 4 * 32 * 64 * 3 };
typedef struct job {
    int        device; /* of the sum */
    const int *parts;  /* of the images, by axis; NULL: the model has no annotations */
} job;

static void add(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    ch_step_out(s, "sum", ch_assign_to_logical_device(ch_add(x, x), ((job *)arg)->device));
}

/* The cores compute the model, a mean of bright pixels, on tiles of the images, and the loss
 * from all outputs and labels. */
static void infer(ch_step *s, void *arg)
{
    const job *j = arg;
    ch_node   *images = ch_step_in(s, 0), *labels = ch_step_in(s, 1), *output;

    if (j->parts != NULL) {
        images = ch_split_to_logical_devices(images, 4, j->parts);
        labels = ch_replicate_to_logical_devices(labels);
    }
    output = ch_mean(ch_relu(ch_sub(images, ch_number(s, 3))), 3, (int[]){1, 2, 3}, false);
    if (j->parts != NULL)
        output = ch_replicate_to_logical_devices(output);
    ch_step_out(s, "images", images);
    ch_step_out(s, "loss", ch_mean_all(ch_square(ch_sub(output, labels))));
}

/* Runs a program once. After an error, prints it and sets *out to NULL. */
static ch_status run(ch_strategy *st, ch_step_fn program, job j, ch_tuple *in, ch_tuple **out)
{
    ch_function *f = NULL;
    ch_status    rc;

    *out = NULL;
    must(ch_function_new("step", program, &j, &f));
    rc = ch_strategy_run(st, f, in, out);
    if (rc != CH_OK)
        printf("%s: %s\n", ch_status_name(rc), ch_error_message());
    ch_function_unref(f);
    return rc;
}

/* Doubles numbers on core 0 of four replicas, which have two numbers each. Returns true if all
 * results are right. */
static bool assigns(ch_strategy *st)
{
    float        number[] = {1, 2, 3, 4, 5, 6, 7, 8};
    ch_tensor   *x = NULL;
    ch_iterator *it = NULL;
    ch_tuple    *in = NULL, *out;
    bool         ok = true;

    must(ch_tensor_copy_of(CH_F32, ch_shape_of(8), number, &x));
    must(ch_strategy_distribute_dataset(
        st, ch_dataset_batch(ch_dataset_slices(1, &x, NULL), 8, NULL), NULL, &it));
    must(ch_iterator_next(it, &in));
    must(run(st, add, (job){.device = 0}, in, &out));
    for (int i = 0; i < 8; i++)
        ok &= ((const float *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), i / 2)))[i % 2] ==
              2 * number[i];
    ch_tuple_unref(out);
    ok &= run(st, add, (job){.device = 2}, in, &out) == CH_INVALID_ARGUMENT;
    ch_tuple_unref(in);
    ch_iterator_unref(it);
    ch_tensor_unref(x);
    return ok;
}

/* Splits images on two and on eight cores. Returns true if all results are right. */
static bool splits(ch_strategy *two, ch_strategy *eight)
{
    static float image[IMAGES];
    job          tiles = {.parts = (int[]){1, 2, 4, 1}}, odd = {.parts = (int[]){1, 2, 1, 4}};
    ch_tensor   *x[2] = {NULL};
    ch_tuple    *in, *out, *whole;
    bool         ok;

    for (int i = 0; i < IMAGES; i++)
        image[i] = (float)(i % 7);
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(4, 32, 64, 3), image, &x[0]));
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(4), image, &x[1]));
    in = batch_of(2, x);
    ok = run(two, infer, tiles, in, &out) == CH_INVALID_ARGUMENT &&
         run(eight, infer, odd, in, &out) == CH_INVALID_ARGUMENT;
    must(run(eight, infer, tiles, in, &out));
    must(run(eight, infer, (job){.parts = NULL}, in, &whole));
    ok &= number_of(out, "loss") == number_of(whole, "loss");
    for (int i = 0; i < IMAGES; i++)
        ok &= ((const float *)ch_tensor_data(ch_value_at(ch_tuple_get(out, "images"), 0)))[i] ==
              image[i];
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_tuple_unref(whole);
    return ok;
}

int main(void)
{
    ch_tpu_topology *t = new_topology(0);
    ch_strategy     *two = new_replicas(t, 4, (int[]){1, 1, 2}, NULL);
    ch_strategy     *eight = new_replicas(t, 1, (int[]){2, 2, 2}, NULL);
    bool             ok = assigns(two) && splits(two, eight);

    ch_strategy_unref(two);
    ch_strategy_unref(eight);
    ch_tpu_topology_unref(t);
    return ok ? 0 : 1;
}
