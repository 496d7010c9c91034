/* examples/csv.c -- CSV files with columns of several types; a profile of the stages.
 *
 *     ./csv [short]
 *
 * Predicts the price of a house from its area, its number of rooms (which may be missing) and
 * its district (a word).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"
#include "points.h"

enum { FILES = 4, ROWS = 1000, BATCH = 100, DISTRICTS = 3 };

static const char *const part[FILES] = {"a.csv", "b.csv", "c.csv", "d.csv"};
static const char *const district[DISTRICTS] = {"harbour", "hill", "old town"};

static void write_files(const char *folder)
{
    for (int f = 0; f < FILES; f++) {
        FILE *file = fopen(in_folder(folder, part[f]), "w");

        want(file != NULL, "a file to write", part[f]);
        fprintf(file, "id,area,rooms,district,price\n%d,120,,hill,340\n", ROWS);
        for (int i = 0; i < ROWS; i++) {
            int   where = rand() % DISTRICTS;
            float area = between(20, 200);

            fprintf(file, "%d,%.1f,%.0f,\"%s\",%.1f\n", i, area, area / 30, district[where],
                    2 * area + 100 * (float)where);
        }
        fclose(file);
    }
}

/* Returns the rows of a file. Columns that are not named here, such as the id, are skipped. */
static ch_dataset *read_file(ch_dataset *file, void *arg)
{
    const ch_csv_column column[] = {{.name = "area"}, /* f32 is the default dtype */
                                    {.name = "rooms", .missing = "3"},
                                    {.name = "district", .dtype = CH_STR},
                                    {.name = "price"}};

    (void)arg;
    return ch_dataset_csv(file, 4, column, NULL);
}

/* Converts a row to numbers, in C because it has text: area, rooms, one-hot district. */
static ch_status encode(void *arg, ch_tuple *in, ch_tuple **out)
{
    float      x[2 + DISTRICTS] = {(float)number_of(in, "area") / 200,
                                   (float)number_of(in, "rooms") / 6};
    float      price = (float)number_of(in, "price") / 500;
    ch_tensor *t[2] = {NULL};
    ch_str     name;
    int        i = 0;

    (void)arg;
    must(ch_tensor_str(ch_value_at(ch_tuple_get(in, "district"), 0), NULL, &name));
    while (i < DISTRICTS &&
           (strlen(district[i]) != name.size || memcmp(district[i], name.data, name.size) != 0))
        i++;
    if (i == DISTRICTS)
        return ch_fail(CH_INVALID_ARGUMENT, "no district \"%.*s\"", (int)name.size, name.data);
    x[2 + i] = 1;
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(2 + DISTRICTS), x, &t[0]));
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(1), &price, &t[1]));
    *out = batch_of(2, t);
    return CH_OK;
}

static ch_dataset *pipeline(const char *folder)
{
    const ch_tensor_spec spec[] = {{"house", CH_F32, ch_shape_of(2 + DISTRICTS)},
                                   {"price", CH_F32, ch_shape_of(1)}};
    ch_dataset          *d = ch_dataset_files(in_folder(folder, "*.csv"), NULL);

    d = ch_dataset_interleave(d, read_file, NULL, &(ch_interleave_options){.cycle = FILES});
    d = ch_dataset_map_call(d, encode, NULL, 2, spec, NULL);
    d = ch_dataset_cache(d, NULL); /* the stages above run in the first epoch only */
    d = ch_dataset_batch(ch_dataset_shuffle(d, FILES * ROWS, NULL), BATCH, NULL);
    return ch_dataset_prefetch(d, 4);
}

int main(int argc, char **argv)
{
    ch_dataset   *d;
    ch_iterator  *it = NULL;
    ch_model     *m = NULL;
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL;
    char          folder[32], text[4096];
    double        error;

    make_folder(folder);
    write_files(folder);
    d = pipeline(folder);
    ch_dataset_print(d, text, sizeof(text));
    puts(text);
    must(ch_model_new(NULL, ch_layer_dense(1, NULL), NULL, &m));
    must(ch_optimizer_adam(0.05, NULL, NULL, &adam));
    must(ch_compile(m, &(ch_compile_options){.optimizer = adam, .loss = ch_loss_mae}));
    must(ch_strategy_distribute_dataset(NULL, d, NULL, &it));
    must(ch_fit(m, (ch_data){.iterator = it},
                &(ch_fit_options){.epochs = is_short(argc, argv) ? 5 : 30,
                                  .progress = CH_PROGRESS_AUTO,
                                  .catch_interrupt = true},
                &h));
    error = ch_history_last(h, "loss");
    ch_iterator_print_profile(it, text, sizeof(text));
    printf("mean error of the price: %.1f thousand\n\n%s", 500 * error, text);
    ch_history_unref(h);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    drop_folder(folder);
    return error < 0.1 ? 0 : 1;
}
