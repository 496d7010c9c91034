/* test/file/samples.c -- writes a file of each kind into a folder, for test_python.py to read.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "cohort/cohort.h"

static void must(ch_status rc)
{
    if (rc == CH_OK)
        return;
    fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
    exit(1);
}

static const char *in(const char *folder, const char *name)
{
    static char path[1024];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* Returns a tensor of shape (2, 3): i - 2, or i for types without negative numbers. */
static ch_tensor *array(ch_dtype dtype)
{
    ch_tensor *t = NULL;

    must(ch_tensor_new(dtype, ch_shape_of(2, 3), &t));
    for (int64_t i = 0; i < 6; i++)
        if (dtype == CH_BOOL || ch_dtype_name(dtype)[0] == 'u')
            must(ch_tensor_set(t, (int64_t[]){i / 3, i % 3}, dtype == CH_BOOL ? i % 2 : i));
        else
            must(ch_tensor_set(t, (int64_t[]){i / 3, i % 3}, (double)i - 2));
    return t;
}

static void write_arrays(const char *folder)
{
    char name[64];

    for (int d = 0; d < CH_DTYPE_COUNT; d++) {
        if (d == CH_BF16 || d == CH_STR)
            continue;
        ch_tensor *t = array((ch_dtype)d);
        snprintf(name, sizeof(name), "%s.npy", ch_dtype_name((ch_dtype)d));
        must(ch_npy_save(in(folder, name), t, NULL));
        ch_tensor_unref(t);
    }
    static const ch_dtype idx[] = {CH_U8, CH_I8, CH_I16, CH_I32, CH_F32, CH_F64};
    for (int i = 0; i < 6; i++) {
        ch_tensor *t = array(idx[i]);
        snprintf(name, sizeof(name), "%s.idx.gz", ch_dtype_name(idx[i]));
        must(ch_idx_save(in(folder, name), t, NULL));
        ch_tensor_unref(t);
    }
}

static void write_archives(const char *folder)
{
    ch_tensor *t[3] = {array(CH_F32), array(CH_I64), NULL};
    ch_value  *v[3];
    ch_tuple  *tuple;

    must(ch_tensor_new(CH_I32, ch_shape_of(100000), &t[2]));
    for (int i = 0; i < 3; i++)
        must(ch_value_new(CH_PLAIN, 1, &t[i], &v[i]));
    must(ch_tuple_new(3, v, (const char *[]){"x", NULL, "zeros"}, &tuple));
    must(ch_npz_save(in(folder, "stored.npz"), tuple, NULL));
    must(ch_npz_save(in(folder, "deflated.npz"), tuple,
                     &(ch_save_options){.compression = CH_ZLIB}));
    ch_tuple_unref(tuple);
    for (int i = 0; i < 3; i++) {
        ch_value_unref(v[i]);
        ch_tensor_unref(t[i]);
    }
}

static void write_records(const char *path, ch_compression compression)
{
    ch_record_writer *w = NULL;
    ch_example       *e = NULL;
    ch_tensor        *t[] = {array(CH_F32), array(CH_I64), array(CH_U8), NULL};

    must(ch_tensor_copy_of(CH_STR, ch_shape_of(2), (ch_str[]){{"one", 3}, {"two", 3}}, &t[3]));
    must(ch_example_new(&e));
    must(ch_record_writer_open(path, &(ch_save_options){.compression = compression}, &w));
    for (int i = 0; i < 100; i++) {
        must(ch_example_set(e, "float", t[0]));
        must(ch_example_set(e, "int", t[1]));
        must(ch_example_set(e, "image", t[2]));
        must(ch_example_set(e, "words", t[3]));
        must(ch_record_writer_add_example(w, e));
    }
    must(ch_record_writer_close(w));
    ch_example_free(e);
    for (int i = 0; i < 4; i++)
        ch_tensor_unref(t[i]);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    write_arrays(argv[1]);
    write_archives(argv[1]);
    write_records(in(argv[1], "plain.tfrecord"), CH_UNCOMPRESSED);
    write_records(in(argv[1], "gzip.tfrecord"), CH_GZIP);
    write_records(in(argv[1], "zlib.tfrecord"), CH_ZLIB);
    return 0;
}
