/* test/ckpt/samples.c -- writes a checkpoint for Python, and prints a checkpoint of Python.
 *
 *     samples write PREFIX
 *     samples names PREFIX        16000 tensors whose names have 4006 bytes
 *     samples delta FOLDER        a checkpoint "full", and "delta", which needs it
 *     samples long-delta FOLDER   "full", and "delta" with 16000 more tensors with such names
 *     samples many-delta FOLDER   "full", and "delta" with 50000 more tensors, in two slices each
 *     samples dump PREFIX         name, dtype number, shape and values, separated by tabs
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static ch_status write_samples(const char *prefix)
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
    return rc;
}

/* Items of zeros after those of a bundle. */
typedef struct many {
    t_bundle     *known;
    int           n; /* items of zeros */
    ch_ckpt_item *item;
    char         *names;
} many;

static ch_status fetch_known(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    static const char zeros[4096];
    const many       *x = arg;

    *bytes = i >= x->n ? x->known->data[i - x->n] + from : zeros;
    return n <= (int64_t)sizeof(zeros) || i >= x->n ? CH_OK : CH_INTERNAL;
}

/* Makes n items of zeros whose names have `length` bytes, and those of the bundle. If `in_slices`,
 * each two items are the slices of a tensor. */
static void many_begin(many *x, int n, size_t length, bool in_slices, t_bundle *known)
{
    *x = (many){.known = known, .n = n};
    x->item = calloc((size_t)n + T_MOST_ITEMS, sizeof(*x->item));
    x->names = malloc((size_t)n * (length + 1) + 1);
    for (int i = 0; i < n; i++) {
        char *name = x->names + (size_t)i * (length + 1);

        memset(name, 'n', length - 6);
        snprintf(name + length - 6, 7, "%06u", (unsigned)(in_slices ? i / 2 : i) % 1000000);
        x->item[i] = (ch_ckpt_item){.name = name, .dtype = CH_F32, .bytes = 4};
        if (in_slices) {
            x->item[i].whole = ch_shape_of(2);
            x->item[i].region = t_range(i % 2, 1);
            x->item[i].is_slice = true;
        }
    }
}

/* Gives the items of the bundle their places, and returns the bytes of the data file. */
static int64_t many_layout(many *x)
{
    memcpy(x->item + x->n, x->known->item, (size_t)x->known->n * sizeof(*x->item));
    return ch__ckpt_layout(x->n + x->known->n, x->item);
}

static ch_status many_write(many *x, const char *prefix)
{
    const ch_ckpt_write_options quick = {.no_sync = true};
    int                         n = x->n + x->known->n;
    ch_ckpt_writer             *w = NULL;
    ch_status                   rc;

    (void)many_layout(x);
    rc = ch__ckpt_writer_open(prefix, 1, &quick, &w);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_add_file(w, 0, n, x->item, fetch_known, x, NULL);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_begin_index(w);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_add_keys(w, n, x->item, CH_CKPT_SLICES | CH_CKPT_TENSORS);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_commit(w);
    ch__ckpt_writer_close(w);
    free(x->names);
    free(x->item);
    return rc;
}

/* Writes the bundle with metadata, after n items of zeros. */
static ch_status write_with_metadata(t_bundle *b, const char *prefix, ch_ckpt_metadata *m,
                                     int n, size_t length, bool in_slices)
{
    int64_t          bytes = 0;
    ch_bytes_builder text = {0};
    ch_ckpt_item    *x = t_add(b, CH_CKPT_METADATA_KEY, CH_STR, ch_shape_scalar(), NULL);
    ch_status        rc = CH_OK;
    many             all;

    many_begin(&all, n, length, in_slices, b);
    m->n_files = 1;
    m->file_bytes = &bytes;
    for (int i = 0; i < 2 && rc == CH_OK; i++) { /* the first time for its size */
        ch__bytes_builder_clear(&text);
        rc = ch__ckpt_metadata_encode(m, &text, &x->crc);
        x->bytes = (int64_t)text.n;
        b->data[b->n - 1] = text.at;
        bytes = many_layout(&all);
    }
    if (rc == CH_OK)
        rc = many_write(&all, prefix);
    ch__bytes_builder_drop(&text);
    return rc;
}

/* The index compresses the names. A reader that holds all of them needs 64 MB. */
enum { LONG_NAMES = 16000, LENGTH = 4006, MANY_NAMES = 100000 };

static ch_status write_names(const char *prefix)
{
    static t_bundle none;
    many            x;

    many_begin(&x, LONG_NAMES, LENGTH, false, &none);
    return many_write(&x, prefix);
}

/* Writes a full checkpoint, or a delta with its changed rows 1 and 4 and n tensors of zeros. */
static ch_status write_one(const char *folder, bool is_delta, int n, size_t length,
                           bool in_slices)
{
    static const float   table[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, rows[4] = {-1, -2, -3, -4};
    static const int64_t scalar[2] = {10, 20}, ids[2] = {1, 4};
    static t_bundle      b;
    ch_ckpt_metadata     m = {.format = CH_CKPT_FORMAT, .id = 5, .step = 1};
    char                 prefix[600];

    b = (t_bundle){.n = 0};
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
    return write_with_metadata(&b, prefix, &m, is_delta ? n : 0, length, in_slices);
}

static ch_status write_delta(const char *folder, int n, size_t length, bool in_slices)
{
    ch_status rc = write_one(folder, false, 0, 8, false);

    return rc == CH_OK ? write_one(folder, true, n, length, in_slices) : rc;
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

static ch_status dump(const char *prefix)
{
    ch_ckpt  *c = NULL;
    ch_status rc = ch__ckpt_open(prefix, &c);

    for (int i = 0; rc == CH_OK && i < ch__ckpt_count(c); i++)
        rc = print_entry(c, i);
    ch__ckpt_close(c);
    return rc;
}

static ch_status run(const char *command, const char *path)
{
    if (strcmp(command, "write") == 0)
        return write_samples(path);
    if (strcmp(command, "names") == 0)
        return write_names(path);
    if (strcmp(command, "delta") == 0)
        return write_delta(path, 0, 8, false);
    if (strcmp(command, "long-delta") == 0)
        return write_delta(path, LONG_NAMES, LENGTH, false);
    if (strcmp(command, "many-delta") == 0)
        return write_delta(path, MANY_NAMES, 20, true);
    return dump(path);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (run(argv[1], argv[2]) == CH_OK)
        return 0;
    fprintf(stderr, "%s\n", ch_error_message());
    return 1;
}
