/* examples/records.c -- trains from a TFRecord file; saves and restores the position.
 *
 *     ./records [short]
 *
 * The model finds the column of a noisy image that is brighter. After half of the steps the
 * program saves the position of the iterator, frees it, and restores the position in a new
 * iterator. No record is missed or repeated.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { SIDE = 16, RECORDS = 4000, ROWS = 50 };

static ch_model     *model;
static ch_optimizer *optimizer;
static ch_metric    *accuracy;

static void write_file(const char *path)
{
    ch_record_writer *file = NULL;
    ch_example       *e = NULL;

    must(ch_record_writer_open(path, NULL, &file));
    must(ch_example_new(&e));
    for (int i = 0; i < RECORDS; i++) {
        uint8_t    image[SIDE][SIDE];
        int64_t    lit = rand() % SIDE;
        ch_tensor *t[2] = {NULL};

        for (int k = 0; k < SIDE * SIDE; k++)
            image[k / SIDE][k % SIDE] = (uint8_t)(rand() % 176 + (k % SIDE == lit ? 80 : 0));
        must(ch_tensor_copy_of(CH_U8, ch_shape_of(SIDE, SIDE), image, &t[0]));
        must(ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &lit, &t[1]));
        must(ch_example_set(e, "image", t[0]));
        must(ch_example_set(e, "lit", t[1]));
        must(ch_record_writer_add_example(file, e));
        ch_tensor_unref(t[0]);
        ch_tensor_unref(t[1]);
    }
    ch_example_free(e);
    must(ch_record_writer_close(file));
}

static ch_dataset *batches_of(const char *path, int64_t epochs)
{
    const ch_feature feature[] = {
        {.name = "image", .dtype = CH_U8, .shape = ch_shape_of(SIDE, SIDE)},
        {.name = "lit", .dtype = CH_I64}};
    ch_dataset *d = ch_dataset_tfrecord(ch_dataset_files(path, NULL), NULL);

    d = ch_dataset_shuffle(ch_dataset_parse_examples(d, 2, feature), 1000, NULL);
    return ch_dataset_batch(ch_dataset_repeat(d, epochs), ROWS, NULL);
}

static void train(ch_step *s, void *arg)
{
    ch_node       *image = ch_div(ch_cast(ch_step_in(s, 0), CH_F32), ch_number(s, 255));
    ch_node       *logits = ch_model_call(model, s, image, true), *lit = ch_step_in(s, 1);
    ch_var *const *var;
    int            n = ch_model_trainable(model, &var);

    (void)arg;
    ch_optimizer_minimize(
        optimizer, s, ch_loss_average(ch_loss_sparse_categorical(logits, lit), NULL), n, var);
    ch_metric_update(accuracy, s, lit, logits, NULL);
}

/* Runs at most `most` steps, until the data ends. Returns the number of steps. */
static int run(ch_iterator *it, ch_function *step, int most)
{
    ch_tuple *batch = NULL;

    for (int n = 0; n < most; n++, ch_tuple_unref(batch)) {
        must(ch_iterator_next(it, &batch));
        if (batch == NULL)
            return n;
        must(ch_strategy_run(NULL, step, batch, NULL));
    }
    return most;
}

int main(int argc, char **argv)
{
    char         path[] = "/tmp/columns-XXXXXX", text[2048];
    int64_t      epochs = is_short(argc, argv) ? 4 : 20;
    ch_layer    *layer[] = {ch_layer_flatten(), ch_layer_dense(SIDE, NULL)};
    ch_function *step = NULL;
    ch_dataset  *d;
    ch_iterator *it = NULL;
    void        *place = NULL;
    size_t       n = 0;
    double       right = 0;

    want(mkstemp(path) >= 0, "a file in /tmp", path);
    write_file(path);
    d = batches_of(path, epochs);
    must(ch_model_new(NULL, ch_layer_sequential("columns", 2, layer), NULL, &model));
    must(ch_optimizer_adam(3e-2, NULL, NULL, &optimizer));
    must(ch_metric_new(NULL, ch_metric_sparse_accuracy(), &accuracy));
    must(ch_function_new("train", train, NULL, &step));
    must(ch_iterator_new(d, NULL, &it));
    printf("%d steps", run(it, step, (int)epochs * RECORDS / ROWS / 2));
    must(ch_iterator_save(it, &place, &n));
    ch_iterator_unref(it);
    must(ch_iterator_new(d, NULL, &it));
    must(ch_iterator_restore(it, place, n));
    printf(", restored, %d more steps\n", run(it, step, INT32_MAX));
    must(ch_metric_result(accuracy, &right));
    ch_iterator_print_profile(it, text, sizeof(text));
    printf("accuracy %.2f %%\n\n%s", 100 * right, text);
    ch_bytes_free(place);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_function_unref(step);
    ch_metric_unref(accuracy);
    ch_optimizer_unref(optimizer);
    ch_model_unref(model);
    return remove(path) == 0 && right > 0.9 ? 0 : 1;
}
