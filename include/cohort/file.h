/* cohort/file.h -- arrays and records in files: whole arrays loaded and saved, records written.
 *
 *     rc = ch_npy_save("x.npy", x, NULL);
 *     rc = ch_npy_load("x.npy", NULL, &y);
 *
 * Records of tf.train.Example, for cohort/dataset.h and TensorFlow to read:
 *
 *     rc = ch_record_writer_open("train.tfrecord", NULL, &w);
 *     for (int i = 0; rc == CH_OK && i < n; i++) {
 *         rc = ch_example_set(e, "image", image[i]);
 *         if (rc == CH_OK)
 *             rc = ch_example_set(e, "label", label[i]);
 *         if (rc == CH_OK)
 *             rc = ch_record_writer_add_example(w, e);
 *     }
 *     rc = rc == CH_OK ? ch_record_writer_close(w) : (ch_record_writer_drop(w), rc);
 *
 * A file that is written appears when it is whole, or not at all: until then it has another name in
 * the same folder, and what was there before stays. A file that is replaced gives its mode to the new one. A
 * link is replaced too, and what it leads to is not touched; a directory, FIFO or device is
 * INVALID_ARGUMENT. Errors name the file, and the byte where there
 * is one. Files that do not fit into memory are for cohort/dataset.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_FILE_H
#define COHORT_FILE_H

#include "cohort/value.h"

typedef enum ch_compression {
    CH_BY_NAME, /* .gz, .zst; all else is as it is */
    CH_UNCOMPRESSED,
    CH_GZIP,
    CH_ZLIB,
    CH_ZSTD
} ch_compression;

/* How a file is read. The limits are for compressed files: what decompresses to more than that
 * is refused, so that a small file cannot fill a machine. */
typedef struct ch_load_options {
    ch_compression compression;
    int            max_expansion; /* bytes from each byte of the file, once there are 3 MiB of
                                   * them; 0: 100. Files of zeros need more; INT_MAX: any */
    int64_t        max_bytes;     /* from the whole file; 0: 1 TiB */
} ch_load_options;

/* How a file is written. */
typedef struct ch_save_options {
    ch_compression compression;
    int  level;   /* of compression: gzip and zlib 1 to 9, zstd 1 to 22; 0: as they like */
    bool no_sync; /* do not wait for the disk: a power cut may lose the file */
} ch_save_options;

/* ---- arrays ---- */

/* numpy's .npy: every dtype but bf16 and strings. Loading turns big-endian and column-wise arrays
 * into ours. */
CH_API CH_MUST_CHECK ch_status ch_npy_save(const char *path, ch_tensor *t,
                                           const ch_save_options *opt);
CH_API CH_MUST_CHECK ch_status ch_npy_load(const char *path, const ch_load_options *opt,
                                           ch_tensor **out);

/* numpy's .npz: plain tensors with names; one that has none is "arr_0" by its place. CH_ZLIB
 * compresses each, as numpy.savez_compressed does; no other kind is known there. */
CH_API CH_MUST_CHECK ch_status ch_npz_save(const char *path, const ch_tuple *t,
                                           const ch_save_options *opt);
/* All of them, in the order of the file. */
CH_API CH_MUST_CHECK ch_status ch_npz_load(const char *path, const ch_load_options *opt,
                                           ch_tuple **out);

/* IDX, the format of MNIST: u8, i8, i16, i32, f32 and f64. */
CH_API CH_MUST_CHECK ch_status ch_idx_save(const char *path, ch_tensor *t,
                                           const ch_save_options *opt);
CH_API CH_MUST_CHECK ch_status ch_idx_load(const char *path, const ch_load_options *opt,
                                           ch_tensor **out);

/* ---- tf.train.Example ---- */

/* Features by name. It is made once, and set and encoded for each record. */
typedef struct ch_example ch_example;

CH_API CH_MUST_CHECK ch_status ch_example_new(ch_example **out);
CH_API void                    ch_example_free(ch_example *e); /* NULL is fine */

/* Sets a feature, or sets it anew, to the tensor's elements in row-major order; no shape is kept.
 * Floats become a float list, strings a bytes list, u8 one value of bytes (an image), all else
 * an int64 list. INVALID_ARGUMENT for u64 above INT64_MAX. */
CH_API CH_MUST_CHECK ch_status ch_example_set(ch_example *e, const char *name, ch_tensor *t);
CH_API void                    ch_example_clear(ch_example *e); /* no features */

/* The message, its features in the order of their names, so that equal examples are equal bytes.
 * They belong to the example, until it is changed or encoded again. */
CH_API CH_MUST_CHECK ch_status ch_example_encode(ch_example *e, ch_str *out);

/* ---- TFRecord ---- */

typedef struct ch_record_writer ch_record_writer;

CH_API CH_MUST_CHECK ch_status ch_record_writer_open(const char            *path,
                                                     const ch_save_options *opt,
                                                     ch_record_writer     **out);
CH_API CH_MUST_CHECK ch_status ch_record_writer_add(ch_record_writer *w, ch_str record);
CH_API CH_MUST_CHECK ch_status ch_record_writer_add_example(ch_record_writer *w, ch_example *e);
/* Makes the file appear, and ends the writer in any case. After an add that failed there is no
 * file, and this fails too. */
CH_API CH_MUST_CHECK ch_status ch_record_writer_close(ch_record_writer *w);
/* Ends the writer and leaves nothing behind. NULL is fine. */
CH_API void ch_record_writer_drop(ch_record_writer *w);

#endif
