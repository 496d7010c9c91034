/* test/ckpt/bundle.h -- writes checkpoints from arrays in memory, for tests.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_CKPT_BUNDLE_H
#define TEST_CKPT_BUNDLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "file/crc32c.h"

enum { T_MOST_ITEMS = 200 };

/* The items of a checkpoint, with the bytes of each. */
typedef struct t_bundle {
    int          n;
    ch_ckpt_item item[T_MOST_ITEMS];
    const char  *data[T_MOST_ITEMS];
    int          file; /* that is being written */
    int          first[T_MOST_ITEMS];
} t_bundle;

static inline ch_ckpt_item *t_add(t_bundle *b, const char *name, ch_dtype dtype, ch_shape whole,
                                  const void *data)
{
    ch_ckpt_item *x = &b->item[b->n];

    *x = (ch_ckpt_item){.name = name, .dtype = dtype, .whole = whole};
    x->bytes = ch__ckpt_bytes(dtype, whole);
    b->data[b->n++] = data;
    return x;
}

static inline ch_ckpt_item *t_add_slice(t_bundle *b, const char *name, ch_dtype dtype,
                                        ch_shape whole, ch_region r, const void *data)
{
    ch_ckpt_item *x = t_add(b, name, dtype, whole, data);
    ch_shape      shape = whole;

    for (int k = 0; k < whole.rank; k++)
        shape.dim[k] = r.size[k];
    x->is_slice = true;
    x->region = r;
    x->bytes = ch__ckpt_bytes(dtype, shape);
    return x;
}

/* Adds strings; `encoded` keeps their bytes. */
static inline ch_ckpt_item *t_add_strings(t_bundle *b, const char *name, ch_shape whole,
                                          const ch_str *s, ch_bytes_builder *encoded)
{
    ch_ckpt_item *x = t_add(b, name, CH_STR, whole, NULL);

    ch__ckpt_encode_strings(ch_shape_count(whole), s, encoded, &x->crc);
    b->data[b->n - 1] = encoded->at;
    x->bytes = (int64_t)encoded->n;
    return x;
}

typedef struct t_source {
    const t_bundle *b;
    int             from; /* index in the bundle of the first item of the file */
} t_source;

static inline ch_status t_fetch(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    const t_source *s = arg;

    *bytes = s->b->data[s->from + i] + from;
    (void)n;
    return CH_OK;
}

/* Writes the bundle. Items of a file must be neighbours, in the order of the files. If `dense`
 * is true, items follow each other without padding, as TensorFlow writes them. */
static inline ch_status t_write_bundle(t_bundle *b, const char *prefix, int n_files, bool dense,
                                       const ch_ckpt_write_options *opt)
{
    ch_ckpt_writer *w = NULL;
    ch_status       rc = ch__ckpt_writer_open(prefix, n_files, opt, &w);
    int             from = 0;

    for (int f = 0; f < n_files && rc == CH_OK; f++) {
        int      n = 0;
        int64_t  end = 0;
        t_source source = {b, from};

        while (from + n < b->n && b->item[from + n].file == f)
            n++;
        ch__ckpt_layout(n, b->item + from);
        for (int i = from; i < from + n && dense; i++) {
            b->item[i].offset = end;
            end += b->item[i].bytes;
        }
        rc = ch__ckpt_writer_add_file(w, f, n, b->item + from, t_fetch, &source, NULL);
        from += n;
    }
    if (rc == CH_OK)
        rc = ch__ckpt_writer_begin_index(w);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_add_keys(w, b->n, b->item, CH_CKPT_SLICES | CH_CKPT_TENSORS);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_commit(w);
    ch__ckpt_writer_close(w);
    return rc;
}

/* Adds metadata, of which this function sets the sizes of files, and writes the bundle with one
 * data file. */
static inline ch_status t_write_checkpoint(t_bundle *b, const char *prefix, ch_ckpt_metadata *m,
                                           const ch_ckpt_write_options *opt)
{
    int64_t          bytes = 0;
    ch_bytes_builder text = {0};
    ch_ckpt_item    *x = t_add(b, CH_CKPT_METADATA_KEY, CH_STR, ch_shape_scalar(), NULL);
    ch_status        rc = CH_OK;

    m->n_files = 1;
    m->file_bytes = &bytes;
    for (int i = 0; i < 2 && rc == CH_OK; i++) { /* the first time for its size */
        ch__bytes_builder_clear(&text);
        rc = ch__ckpt_metadata_encode(m, &text, &x->crc);
        x->bytes = (int64_t)text.n;
        b->data[b->n - 1] = text.at;
        bytes = ch__ckpt_layout(b->n, b->item);
    }
    if (rc == CH_OK)
        rc = t_write_bundle(b, prefix, 1, false, opt);
    ch__bytes_builder_drop(&text);
    return rc;
}

static inline ch_region t_region(int rank, const int64_t *begin, const int64_t *size)
{
    ch_region r = {.begin = {0}};

    for (int k = 0; k < rank; k++) {
        r.begin[k] = begin[k];
        r.size[k] = size[k];
    }
    return r;
}

static inline ch_region t_range(int64_t begin, int64_t size)
{
    return t_region(1, &begin, &size);
}

/* Converts hexadecimal digits to bytes and skips blanks. Returns the number of bytes. */
static inline size_t t_unhex(const char *text, unsigned char *to)
{
    size_t n = 0;

    for (; *text != '\0'; text++) {
        unsigned x;

        if (*text == ' ')
            continue;
        assert_int_equal(sscanf(text, "%2x", &x), 1);
        to[n++] = (unsigned char)x;
        text++;
    }
    return n;
}

#endif
