/* test/ckpt/samples.c -- writes a checkpoint for Python, and prints a checkpoint of Python.
 *
 *     samples write PREFIX
 *     samples names PREFIX        16000 tensors whose names have 4006 bytes
 *     samples delta FOLDER        a checkpoint "full", and "delta", which needs it
 *     samples dump PREFIX         name, dtype number, shape and values, separated by tabs
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static int write_samples(const char *prefix)
{
    static t_bundle      b;
    static float         grid[12];
    static const int64_t scalar = -7;
    char                 many[300];
    const ch_str         texts[4] = {{"one", 3}, {"", 0}, {"\xff\0x", 3}, {many, 300}};
    ch_bytes_builder     e = {0};
    ch_status            rc;

    memset(many, 'y', sizeof(many));
    for (int i = 0; i < 12; i++)
        grid[i] = (float)i;
    t_add_slice(&b, "w", CH_F32, ch_shape_of(4, 3),
                t_region(2, (int64_t[]){0, 0}, (int64_t[]){3, 3}), grid);
    t_add(&b, "empty", CH_F32, ch_shape_of(0, 3), grid);
    t_add_strings(&b, "texts", ch_shape_of(2, 2), texts, &e);
    t_add_slice(&b, "w", CH_F32, ch_shape_of(4, 3),
                t_region(2, (int64_t[]){3, 0}, (int64_t[]){1, 3}), grid + 9)
        ->file = 1;
    t_add(&b, "a/scalar", CH_I64, ch_shape_scalar(), &scalar)->file = 1;
    rc = t_write_bundle(&b, prefix, 2, false, NULL);
    ch__bytes_builder_drop(&e);
    if (rc != CH_OK)
        fprintf(stderr, "%s\n", ch_error_message());
    return rc != CH_OK;
}

/* Writes a full checkpoint, or the delta with its changed rows 1 and 4. */
static ch_status write_one(const char *folder, bool is_delta)
{
    static const float   table[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, rows[4] = {-1, -2, -3, -4};
    static const int64_t scalar[2] = {10, 20}, ids[2] = {1, 4};
    t_bundle             b = {.n = 0};
    ch_ckpt_metadata     m = {.format = CH_CKPT_FORMAT, .id = 5, .step = 1};
    char                 prefix[600];

    snprintf(prefix, sizeof(prefix), "%s/%s", folder, is_delta ? "delta" : "full");
    t_add(&b, "scalar", CH_I64, ch_shape_scalar(), &scalar[is_delta]);
    if (is_delta) {
        m = (ch_ckpt_metadata){
            .format = CH_CKPT_FORMAT, .id = 6, .step = 2, .base_id = 5, .base = "full"};
        t_add(&b, "table" CH_DELTA_IDS, CH_I64, ch_shape_of(2), ids);
        t_add(&b, "table" CH_DELTA_VALUES, CH_F32, ch_shape_of(2, 2), rows);
    } else {
        t_add_slice(&b, "table", CH_F32, ch_shape_of(5, 2),
                    t_region(2, (int64_t[]){0, 0}, (int64_t[]){2, 2}), table);
        t_add_slice(&b, "table", CH_F32, ch_shape_of(5, 2),
                    t_region(2, (int64_t[]){2, 0}, (int64_t[]){3, 2}), table + 4);
    }
    return t_write_checkpoint(&b, prefix, &m, NULL);
}

static int write_delta(const char *folder)
{
    ch_status rc = write_one(folder, false);

    if (rc == CH_OK)
        rc = write_one(folder, true);
    if (rc != CH_OK)
        fprintf(stderr, "%s\n", ch_error_message());
    return rc != CH_OK;
}

static ch_status fetch_zeros(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    static const char zeros[4096];

    (void)arg;
    (void)i;
    (void)from;
    *bytes = zeros;
    return n <= (int64_t)sizeof(zeros) ? CH_OK : CH_INTERNAL;
}

/* The index compresses the names. A reader that holds all of them needs 64 MB. */
static int write_names(const char *prefix)
{
    enum { N = 16000, LENGTH = 4006 };
    static ch_ckpt_item         item[N];
    const ch_ckpt_write_options quick = {.no_sync = true};
    char                       *names = malloc((size_t)N * (LENGTH + 1));
    ch_status                   rc;

    for (int i = 0; i < N; i++) {
        char *name = names + (size_t)i * (LENGTH + 1);

        memset(name, 'n', LENGTH - 6);
        snprintf(name + LENGTH - 6, 7, "%06d", i);
        item[i] = (ch_ckpt_item){.name = name, .dtype = CH_F32, .bytes = 4};
    }
    ch__ckpt_layout(N, item);
    rc = ch__ckpt_write_data(prefix, 0, 1, N, item, fetch_zeros, NULL, &quick);
    if (rc == CH_OK)
        rc = ch__ckpt_write_index(prefix, 1, N, item, &quick);
    free(names);
    return rc != CH_OK;
}

static void print_hex(const char *data, size_t n)
{
    printf("\t");
    for (size_t i = 0; i < n; i++)
        printf("%02x", (unsigned char)data[i]);
}

static ch_status print_entry(ch_ckpt *c, int i)
{
    ch_ckpt_entry e;
    ch_str       *strings = NULL;
    char         *data;
    ch_status     rc;

    ch__ckpt_entry(c, i, &e);
    printf("%s\t%d\t", e.name, e.dtype_number);
    for (int k = 0; k < e.shape.rank; k++)
        printf("%lld,", (long long)e.shape.dim[k]);
    if (e.dtype == CH_STR) {
        rc = ch__ckpt_read_strings(c, e.name, &strings);
        for (int64_t k = 0; rc == CH_OK && k < ch_shape_count(e.shape); k++)
            print_hex(strings[k].data, strings[k].size);
        ch__free(strings);
    } else {
        size_t n = (size_t)ch__ckpt_bytes(e.dtype, e.shape);

        data = malloc(n + 1);
        rc = ch__ckpt_read(c, e.name, NULL, data);
        if (rc == CH_OK)
            print_hex(data, n);
        free(data);
    }
    printf("\n");
    return rc == CH_OK ? ch__ckpt_verify(c, i) : rc;
}

static int dump(const char *prefix)
{
    ch_ckpt  *c = NULL;
    ch_status rc = ch__ckpt_open(prefix, &c);

    for (int i = 0; rc == CH_OK && i < ch__ckpt_count(c); i++)
        rc = print_entry(c, i);
    ch__ckpt_close(c);
    if (rc != CH_OK)
        fprintf(stderr, "%s\n", ch_error_message());
    return rc != CH_OK;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    return strcmp(argv[1], "write") == 0   ? write_samples(argv[2])
           : strcmp(argv[1], "names") == 0 ? write_names(argv[2])
           : strcmp(argv[1], "delta") == 0 ? write_delta(argv[2])
                                           : dump(argv[2]);
}
