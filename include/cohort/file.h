/* cohort/file.h -- files: load and save arrays, write records.
 *
 * Arrays are loaded and saved whole. cohort/dataset.h reads files that do not fit into memory.
 *
 *     rc = ch_npy_save("x.npy", x, NULL);
 *     rc = ch_npy_load("x.npy", NULL, &y);
 *
 * Records of tf.train.Example, which cohort/dataset.h and TensorFlow read:
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
 *   - The caller unrefs the tensors and tuples that are loaded. An example and a writer have a
 *     single owner, and must be used by one thread at a time.
 *   - Saving is atomic: a file appears when it is complete, or not at all. Until then it has
 *     another name in the same directory, and an existing file is unchanged. The new file has
 *     the mode of the file that it replaces.
 *   - A symbolic link is replaced, and its target is not touched. Writing to a directory, a
 *     FIFO or a device is INVALID_ARGUMENT.
 *   - Errors name the file, and the byte if there is one. `opt` may be NULL everywhere.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_FILE_H
#define COHORT_FILE_H

#include "cohort/value.h"

typedef enum ch_compression {
    CH_BY_NAME, /* gzip for names that end in .gz, zstd for .zst; else none */
    CH_UNCOMPRESSED,
    CH_GZIP,
    CH_ZLIB,
    CH_ZSTD
} ch_compression;

/* Options for reading. The limits are for compressed files: a file that decompresses to more is
 * refused, so that a small file cannot fill the memory. */
typedef struct ch_load_options {
    ch_compression compression;
    /* Most bytes for each compressed byte, checked after 3 MiB; 0: 100. Files of zeros need
     * more. INT_MAX: no limit. */
    int     max_expansion;
    int64_t max_bytes; /* most bytes of the whole file, decompressed; 0: 1 TiB */
} ch_load_options;

/* Options for writing. */
typedef struct ch_save_options {
    ch_compression compression;
    int            level;   /* gzip and zlib 1 to 9, zstd 1 to 22; 0: the default of each */
    bool           no_sync; /* do not wait for the disk: a power failure may lose the file */
} ch_save_options;

/* ---- arrays ---- */

/* Save and load a .npy file of numpy. All dtypes except bf16 and strings. Loading converts
 * big-endian and column-major arrays. */
CH_API CH_MUST_CHECK ch_status ch_npy_save(const char *path, ch_tensor *t,
                                           const ch_save_options *opt);
CH_API CH_MUST_CHECK ch_status ch_npy_load(const char *path, const ch_load_options *opt,
                                           ch_tensor **out);

/* Saves a .npz file of numpy. The leaves must be plain. Leaf i without a name is called
 * "arr_i". CH_ZLIB compresses each array, as numpy.savez_compressed does; no other compression
 * is possible. */
CH_API CH_MUST_CHECK ch_status ch_npz_save(const char *path, const ch_tuple *t,
                                           const ch_save_options *opt);
/* Loads all arrays of a .npz file, in the order of the file. */
CH_API CH_MUST_CHECK ch_status ch_npz_load(const char *path, const ch_load_options *opt,
                                           ch_tuple **out);

/* Save and load an IDX file, the format of MNIST. The dtypes are u8, i8, i16, i32, f32 and
 * f64. */
CH_API CH_MUST_CHECK ch_status ch_idx_save(const char *path, ch_tensor *t,
                                           const ch_save_options *opt);
CH_API CH_MUST_CHECK ch_status ch_idx_load(const char *path, const ch_load_options *opt,
                                           ch_tensor **out);

/* ---- tf.train.Example ---- */

/* A set of features with names. The same object can be set and encoded for each record. */
typedef struct ch_example ch_example;

CH_API CH_MUST_CHECK ch_status ch_example_new(ch_example **out);
CH_API void                    ch_example_free(ch_example *e); /* NULL is fine */

/* Sets or replaces a feature. Its values are the tensor's elements in row-major order; the
 * shape is not stored. Floats become a float list, strings a bytes list, u8 a single bytes
 * value (an image), and other dtypes an int64 list. INVALID_ARGUMENT: a u64 is above
 * INT64_MAX. */
CH_API CH_MUST_CHECK ch_status ch_example_set(ch_example *e, const char *name, ch_tensor *t);
/* Removes all features. */
CH_API void ch_example_clear(ch_example *e);

/* Encodes the message. Features are sorted by name, so equal examples give equal bytes. The
 * example owns the bytes, until it is changed or encoded again. */
CH_API CH_MUST_CHECK ch_status ch_example_encode(ch_example *e, ch_str *out);

/* ---- TFRecord ---- */

typedef struct ch_record_writer ch_record_writer;

/* Opens a TFRecord file for writing. The caller must end the writer with ch_record_writer_close
 * or ch_record_writer_drop. */
CH_API CH_MUST_CHECK ch_status ch_record_writer_open(const char            *path,
                                                     const ch_save_options *opt,
                                                     ch_record_writer     **out);
/* Append a record of bytes, or an encoded example. */
CH_API CH_MUST_CHECK ch_status ch_record_writer_add(ch_record_writer *w, ch_str record);
CH_API CH_MUST_CHECK ch_status ch_record_writer_add_example(ch_record_writer *w, ch_example *e);
/* Completes the file and frees the writer, also on an error. If an add could not
 * encode or write, this call fails too, and there is no file. */
CH_API CH_MUST_CHECK ch_status ch_record_writer_close(ch_record_writer *w);
/* Frees the writer and removes the incomplete file. NULL is fine. */
CH_API void ch_record_writer_drop(ch_record_writer *w);

#endif
