/* bench/input.c -- a pipeline: reads a million examples of 3 KiB, parses, shuffles, batches.
 *
 * A run is a pass over the file; the iterator continues with the next pass, as from epoch to
 * epoch. The limit is a loop on a single core that reads the same file and computes its
 * checksums. The file is in the page cache, so that the pipeline is measured and not the disk.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "cohort/cohort.h"
#include "file/crc32c.h"
#include "must.h"

enum { PIXELS = 3072, BATCH = 256, SHUFFLE = 10000 };

typedef struct input {
    char    path[64];
    int     n; /* examples */
    int64_t bytes;

    ch_iterator *it;
} input;

static void write_file(input *in)
{
    ch_record_writer *w = NULL;
    ch_example       *e = NULL;
    ch_tensor        *x = NULL, *y = NULL;

    must(ch_record_writer_open(in->path, &(ch_save_options){.no_sync = true}, &w));
    must(ch_example_new(&e));
    must(ch_tensor_new(CH_U8, ch_shape_of(PIXELS), &x));
    must(ch_tensor_new(CH_I64, ch_shape_scalar(), &y));
    for (int i = 0; i < in->n; i++) {
        memset(ch_tensor_data_mut(x), i % 251, PIXELS);
        memcpy(ch_tensor_data_mut(x), &i, sizeof(i));
        *(int64_t *)ch_tensor_data_mut(y) = i;
        must(ch_example_set(e, "x", x));
        must(ch_example_set(e, "y", y));
        must(ch_record_writer_add_example(w, e));
    }
    must(ch_record_writer_close(w));
    ch_tensor_unref(x);
    ch_tensor_unref(y);
    ch_example_free(e);
}

static ch_dataset *pipeline(const input *in, int shuffle)
{
    const char *path = in->path;
    ch_dataset *d = ch_dataset_tfrecord(ch_dataset_file_list(1, &path), NULL);

    d = ch_dataset_parse_examples(
        d, 2,
        (ch_feature[]){{.name = "x", .dtype = CH_U8, .shape = ch_shape_of(PIXELS)},
                       {.name = "y", .dtype = CH_I64}});
    if (shuffle > 0)
        d = ch_dataset_shuffle(d, shuffle, NULL);
    return ch_dataset_batch(d, BATCH, NULL);
}

static void open_input(input *in)
{
    ch_dataset *d = pipeline(in, SHUFFLE);

    must(ch_iterator_new(d, NULL, &in->it));
    ch_dataset_unref(d);
}

/* Reads the file once. Returns the sum of the labels and of the first bytes of the images. */
static int64_t pass(const input *in, bool profile)
{
    ch_iterator *it = in->it;
    ch_tuple    *t = NULL;
    int64_t      sum = 0;

    for (;;) {
        must(ch_iterator_next(it, &t));
        if (t == NULL)
            break;
        const ch_tensor *x = ch_value_at(ch_tuple_at(t, 0), 0),
                        *y = ch_value_at(ch_tuple_at(t, 1), 0);

        for (int64_t i = 0; i < ch_tensor_count(y); i++) {
            int first;

            memcpy(&first, (const char *)ch_tensor_data(x) + i * PIXELS, sizeof(first));
            sum += ((const int64_t *)ch_tensor_data(y))[i] + first;
        }
        ch_tuple_unref(t);
        t = NULL;
    }
    if (profile) {
        char text[4096];

        ch_iterator_print_profile(it, text, sizeof(text));
        fputs(text, stderr);
    }
    must(ch_iterator_restart(it));
    return sum;
}

static void run_passes(void *arg, int64_t n)
{
    while (n-- > 0)
        (void)pass(arg, false);
}

static bool is_all_there(void *arg, char *why, size_t size)
{
    input  *in = arg;
    int64_t want = (int64_t)in->n * (in->n - 1),
            got = pass(in, getenv("BENCH_PROFILE") != NULL);

    if (got != want)
        snprintf(why, size, "labels and pixels add up to %lld, want %lld", (long long)got,
                 (long long)want);
    return got == want;
}

/* The limit: reads the file and computes checksums. */
static void bare(void *arg, int64_t n)
{
    const input *in = arg;
    size_t       size = 256 << 10;
    char        *block = malloc(size);

    while (n-- > 0) {
        int               fd = open(in->path, O_RDONLY);
        ssize_t           got;
        volatile uint32_t crc = 0;

        while ((got = read(fd, block, size)) > 0)
            crc = ch__crc32c(crc, block, (size_t)got);
        close(fd);
    }
    free(block);
}

/* ---- the cost for the training thread ---- */

enum { STEPS = 301, BUSY_US = 2000 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Measures the median time to get a batch, in a program that computes for 2 ms per batch. */
static void measure_step(bench *b, const input *in)
{
    const char *name = "getting a batch, in a step of 2 ms";
    double      took[STEPS];

    if (!bench_wants(b, name))
        return;
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *t = NULL;
        double    from = bench_now();

        must(ch_iterator_get_next(in->it, &t));
        took[i] = bench_now() - from;
        while (bench_now() - from < 1e-6 * BUSY_US)
            ;
        ch_tuple_unref(t);
    }
    must(ch_iterator_restart(in->it));
    qsort(took, STEPS, sizeof(took[0]), compare);
    bench_add(b, name, "us", BENCH_LOWER, 1e6 * took[STEPS / 2], NAN);
}

int main(int argc, char **argv)
{
    bench *b = bench_open("input", argc, argv);
    input  in = {.path = "/tmp/cohort-input-XXXXXX", .n = bench_is_quick(b) ? 20000 : 1000000};
    int    fd;
    struct stat is;

    fd = mkstemp(in.path);
    if (fd < 0)
        return 1;
    write_file(&in);
    if (stat(in.path, &is) != 0)
        return 1;
    in.bytes = is.st_size;
    open_input(&in);
    setenv("INPUT", in.path, 1);
    bench_run(b, &(bench_case){
                     .name = "TFRecord 1M x 3 KiB, shuffle 10k, batch 256",
                     .unit = "GB/s",
                     .better = BENCH_HIGHER,
                     .scale = 1e-9 * (double)in.bytes,
                     .ours = {.run = run_passes, .arg = &in},
                     .limit = {.run = bare, .arg = &in},
                     .peer = {{"PyTorch DataLoader, in the process",
                               .command = "exec $PYTHON $PEERS/torch_input.py 0"},
                              {"PyTorch DataLoader, 2 workers",
                               .command = "exec $PYTHON $PEERS/torch_input.py 2"}},
                     .check = is_all_there,
                 });
    if (in.n >= STEPS * BATCH)
        measure_step(b, &in);
    ch_iterator_unref(in.it);
    close(fd);
    unlink(in.path);
    return bench_close(b);
}
