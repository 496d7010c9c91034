/* cohort/dataset.h -- where examples come from: the description of an input pipeline.
 *
 *     ch_dataset *d = ch_dataset_tfrecord(ch_dataset_files("train-*.tfrecord", NULL), NULL);
 *     d = ch_dataset_parse_examples(d, 2, (ch_feature[]){
 *             {.name = "image", .dtype = CH_F32, .shape = ch_shape_of(28, 28)},
 *             {.name = "label", .dtype = CH_I64}});
 *     d = ch_dataset_batch(ch_dataset_shuffle(d, 10000, NULL), 256, NULL);
 *     rc = ch_iterator_new(d, NULL, &it);                                  // cohort/iterator.h
 *
 * A dataset is a small tree that says what is to be done; it holds no file open and no position.
 * It can be printed, encoded, sent to another machine and run there. Elements are tuples of
 * tensors, each with a name or without.
 *
 *   - A function that is given a dataset takes it over, on an error too: one unref of the
 *     outermost ends all. To be used twice, a dataset is given with ch_dataset_ref.
 *   - Functions return NULL on an error, and so does whatever is given NULL; ch_iterator_new then
 *     fails with that error.
 *   - A dataset does not change once made: any number of iterators and threads may use it.
 *   - There are limits, and errors that name them: 256 components of an element (a column of CSV can have
 *     many fields), 1024 threads, calls of a map at the same time, and elements open in an interleave,
 *     256 stages one above the other and 16384 in all.
 *   - Everything random comes from a seed and from places in the data, never from time: two
 *     iterators of one dataset give the same elements in the same order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_DATASET_H
#define COHORT_DATASET_H

#include "cohort/file.h"
#include "cohort/graph.h"
#include "cohort/schema.h"
#include "cohort/step.h"

typedef struct ch_dataset ch_dataset;

CH_API ch_dataset *ch_dataset_ref(ch_dataset *d);
CH_API void        ch_dataset_unref(ch_dataset *d); /* NULL is fine */

/* ---- what is known of one ---- */

#define CH_INFINITE (-1)
#define CH_UNKNOWN  (-2)

/* How many elements it has, CH_INFINITE or CH_UNKNOWN. */
CH_API int64_t ch_dataset_cardinality(const ch_dataset *d);
/* The components of an element; a size of -1 differs from element to element. The array
 * belongs to the dataset. */
CH_API int ch_dataset_element_spec(const ch_dataset *d, const ch_tensor_spec **out);
/* The tree, a stage a line, the last one first; as snprintf does. */
CH_API int ch_dataset_print(const ch_dataset *d, char *text, size_t size);

/* ---- from memory ---- */

/* One element: these tensors, which are referenced. `name` may be NULL, and its entries too. */
CH_API ch_dataset *ch_dataset_of(int n, ch_tensor *const *t, const char *const *name);
/* An element for each row of axis 0, which the tensors have equally many of. They are
 * referenced, and so is memory that they wrap: nothing is copied. */
CH_API ch_dataset *ch_dataset_slices(int n, ch_tensor *const *t, const char *const *name);
/* The i64 scalars from, from + step, ... before `to`. */
CH_API ch_dataset *ch_dataset_range(int64_t from, int64_t to, int64_t step);

/* A C function that gives one element after the other. With one `arg` it is called by one thread at a
 * time. Such a dataset cannot be encoded. */
typedef struct ch_generator {
    const ch_tensor_spec *spec; /* of its elements; copied */
    int                   n_spec;
    /* The next element, as a reference that the caller gets; NULL at the end. */
    ch_status (*next)(void *arg, ch_tuple **out);
    /* Back to the first element. NULL: it gives its elements once. */
    ch_status (*restart)(void *arg);
    /* Where it is, as a tensor of numbers; and to go there. Both NULL: an iterator over it
     * cannot be saved. */
    ch_status (*save)(void *arg, ch_tensor **out);
    ch_status (*restore)(void *arg, ch_tensor *place);
} ch_generator;
/* `make` is called for every iterator with `arg`, and gives what its functions are called with;
 * `drop` ends that; both are called by one thread at a time. With both NULL, `arg` is, and there can
 * be one iterator at a time, in which it stands once; a second is FAILED_PRECONDITION. What is done
 * with each element (flat_map ...) cannot have such a one. */
CH_API ch_dataset *ch_dataset_generator(const ch_generator *g,
                                        ch_status (*make)(void *arg, void **out),
                                        void (*drop)(void *state), void *arg);

/* ---- from files ----
 *
 * Readers take a dataset of file names: string scalars, or vectors of them. They read the files
 * one after the other; ch_dataset_interleave reads several at once. Names that end in .gz
 * and .zst are decompressed. Files are regular ones: a FIFO or a device is INVALID_ARGUMENT.
 * What is wrong with a file is an error that names it and the byte. */

typedef struct ch_files_options {
    bool     shuffle; /* else sorted by their bytes, in every locale */
    uint64_t seed;
    bool     reshuffle;    /* another order in each pass */
    bool     may_be_empty; /* else a pattern that finds nothing is an error */
} ch_files_options;

/* The names of files that fit a pattern as the shell's: "data/train-*.tfrecord". They are looked for
 * when an iterator begins, on the machine it runs on. A directory on the way that cannot be read is an
 * error that names it. */
CH_API ch_dataset *ch_dataset_files(const char *pattern, const ch_files_options *opt);
/* These names, in this order. */
CH_API ch_dataset *ch_dataset_file_list(int n, const char *const *path);

typedef struct ch_read_options {
    ch_compression compression;
    bool skip_bad; /* leave out what is damaged or larger than limits allow, and count it
                    * (ch_iterator_skipped); running out of memory is an error all the same */
    /* Of a record or line; 0: 64 MiB. A larger one is an error, or left out, and what is behind
     * it is read. */
    int64_t max_record_bytes;
    int     max_expansion; /* of compressed files, as in ch_load_options */
} ch_read_options;

/* Records of TFRecord files: string scalars. Checksums are checked. */
CH_API ch_dataset *ch_dataset_tfrecord(ch_dataset *files, const ch_read_options *opt);
/* Records of `bytes` each, after `header` bytes and before `footer` bytes of every file. */
CH_API ch_dataset *ch_dataset_fixed_records(ch_dataset *files, int64_t bytes, int64_t header,
                                            int64_t footer, const ch_read_options *opt);
/* Lines, without their ends (\n or \r\n). */
CH_API ch_dataset *ch_dataset_lines(ch_dataset *files, const ch_read_options *opt);
/* Rows of the array in each file. `row` says what they are; NULL: the first file is looked at. */
CH_API ch_dataset *ch_dataset_npy(ch_dataset *files, const ch_tensor_spec *row,
                                  const ch_read_options *opt);
CH_API ch_dataset *ch_dataset_idx(ch_dataset *files, const ch_tensor_spec *row,
                                  const ch_read_options *opt);
/* Rows of the arrays of each file that `row` names; n = 0: of all with rows that the first file has.
 * Scalars, and members that are no .npy, are passed over. */
CH_API ch_dataset *ch_dataset_npz(ch_dataset *files, int n, const ch_tensor_spec *row,
                                  const ch_read_options *opt);

typedef struct ch_csv_options {
    ch_read_options read;
    bool            no_header; /* the first line is data */
    char            separator; /* 0: a comma */
} ch_csv_options;

/* Lines of fields, each line an element of scalars, or of vectors of fields that follow one another
 * (ch_csv_column's `fields`). Fields may be "quoted, with ""quotes"" and
 * ends of lines in them"; fields that no column asks for are passed over. */
CH_API ch_dataset *ch_dataset_csv(ch_dataset *files, int n, const ch_csv_column *column,
                                  const ch_csv_options *opt);

typedef struct ch_libsvm_options {
    ch_read_options read;
    bool            from_zero; /* the first index is 0, not 1 */
    bool            sparse;    /* "ids" i64 (?) and "values" f32 (?) in place of "x" */
} ch_libsvm_options;

/* Lines "label index:value ...": elements "x" f32 (n_features) and "y" f32 (). */
CH_API ch_dataset *ch_dataset_libsvm(ch_dataset *files, int64_t n_features,
                                     const ch_libsvm_options *opt);

/* The element's only component, a string, is a tf.train.Example: these features of it. A record that is
 * none is an error that names the file and the byte (behind stages that do not keep these, a cache or
 * lines, the record's number), or left out if its reader leaves out what is damaged
 * (skip_bad). One that is an Example and lacks a feature without a default, or has another number or type
 * of values, is not damaged: that is INVALID_ARGUMENT always, since the description does not fit. */
CH_API ch_dataset *ch_dataset_parse_examples(ch_dataset *d, int n, const ch_feature *feature);

/* ---- element by element ---- */

typedef struct ch_map_options {
    int  parallel;  /* calls at the same time; 0: as many as there are threads. A C function is
                     * called by one thread at a time unless this is more than 1 */
    bool unordered; /* give results as they are ready: faster where calls take unequal times */
} ch_map_options;

/* A step: the components come in as inputs, its outputs are the new components. It is recorded
 * once. With strings no step computes: such an input can be looked up in a table (cohort/table.h),
 * and be an output as it is. Random numbers in it depend on the element's place, not on who
 * computes it. */
CH_API ch_dataset *ch_dataset_map(ch_dataset *d, ch_step_fn step, void *arg,
                                  const ch_map_options *opt);
/* A C function: gives a tuple of `spec` for each element. Cannot be encoded. */
typedef ch_status (*ch_map_fn)(void *arg, ch_tuple *in, ch_tuple **out);
CH_API ch_dataset *ch_dataset_map_call(ch_dataset *d, ch_map_fn fn, void *arg, int n_spec,
                                       const ch_tensor_spec *spec, const ch_map_options *opt);
/* Only components of these names, in this order; "new=old" renames. A component is also
 * known by its number: "0", "new=0". */
CH_API ch_dataset *ch_dataset_select(ch_dataset *d, int n, const char *const *name);

/* Elements for which the step's one output, a bool scalar, is true. */
CH_API ch_dataset *ch_dataset_filter(ch_dataset *d, ch_step_fn step, void *arg);
typedef ch_status (*ch_filter_fn)(void *arg, ch_tuple *in, bool *keep);
CH_API ch_dataset *ch_dataset_filter_call(ch_dataset *d, ch_filter_fn fn, void *arg);
/* Elements up to the first for which it is false. */
CH_API ch_dataset *ch_dataset_take_while(ch_dataset *d, ch_step_fn step, void *arg);
CH_API ch_dataset *ch_dataset_take_while_call(ch_dataset *d, ch_filter_fn fn, void *arg);

/* ---- batches ---- */

typedef struct ch_batch_options {
    bool drop_remainder; /* a last batch that is short is left out, and the size is known */
    /* A component with a size that differs becomes two: "x/values", "x/row_splits"; "0/values" if it is
     * the first and has no name. By these names unbatch, rebatch, a split over replicas and steps know
     * what belongs together, also behind a map that gives both. cohort/function.h says what a step sees. */
    bool ragged;
} ch_batch_options;

/* `size` elements as one with a new axis 0. Elements of unequal shapes are an error, unless... */
CH_API ch_dataset *ch_dataset_batch(ch_dataset *d, int64_t size, const ch_batch_options *opt);

typedef struct ch_pad_options {
    bool            drop_remainder;
    const ch_shape *shape; /* of each component; -1: the largest of the batch. NULL: all -1 */
    const double   *value; /* of each component; NULL: 0. Strings are padded with "" */
} ch_pad_options;

/* ... they are padded behind their ends. */
CH_API ch_dataset *ch_dataset_padded_batch(ch_dataset *d, int64_t size,
                                           const ch_pad_options *opt);
/* Each row of axis 0 an element. */
CH_API ch_dataset *ch_dataset_unbatch(ch_dataset *d);
/* Rows in batches of these sizes in turn, whatever batches they came in. */
CH_API ch_dataset *ch_dataset_rebatch(ch_dataset *d, int n, const int64_t *size,
                                      const ch_batch_options *opt);

typedef struct ch_bucket_options {
    bool drop_remainder;
    bool no_padding;      /* all of a bucket are of one length */
    bool pad_to_boundary; /* `component` not to the longest of the batch, but to the longest
                                    * that its bucket may have: its boundary - 1 */
    const double *value;
} ch_bucket_options;

/* Batches of elements that are about as long: n boundaries make n + 1 buckets, each with its batch
 * size. The length is the first size of `component`; one that equals a boundary is in the bucket
 * behind it. */
CH_API ch_dataset *ch_dataset_bucket_by_length(ch_dataset *d, int component, int n,
                                               const int64_t           *boundary,
                                               const int64_t           *batch_size,
                                               const ch_bucket_options *opt);

/* ---- order and number ---- */

typedef struct ch_shuffle_options {
    uint64_t seed;
    bool     same_each_time; /* the same order in each pass and epoch */
} ch_shuffle_options;

/* In random order: out of a buffer of `buffer` elements one is drawn, and the next one read in its
 * place. A buffer as large as the data shuffles perfectly. */
CH_API ch_dataset *ch_dataset_shuffle(ch_dataset *d, int64_t buffer,
                                      const ch_shuffle_options *opt);
/* `count` times over; CH_INFINITE: for ever. With more than 1024 passes to go over, one that gives
 * nothing is the last. */
CH_API ch_dataset *ch_dataset_repeat(ch_dataset *d, int64_t count);
/* Elements index, index + n, index + 2n ... n = CH_BY_HINT: what the distribution says. An element
 * that failed is counted; its error is for the shard that would have had the element. */
#define CH_BY_HINT (-1)
CH_API ch_dataset *ch_dataset_shard(ch_dataset *d, int64_t n, int64_t index);
CH_API ch_dataset *ch_dataset_take(ch_dataset *d, int64_t count); /* CH_INFINITE: all */
CH_API ch_dataset *ch_dataset_skip(ch_dataset *d, int64_t count); /* CH_INFINITE: all */
/* The components of all, next to each other; ends with the shortest. An element that one of them fails
 * for is left out of the others too: one error, and what is behind it stays together. */
CH_API ch_dataset *ch_dataset_zip(int n, ch_dataset *const *d);
/* One after the other; of equal dtypes and ranks. */
CH_API ch_dataset *ch_dataset_concatenate(int n, ch_dataset *const *d);
/* With its number before it, an i64 scalar from `start` on. */
CH_API ch_dataset *ch_dataset_enumerate(ch_dataset *d, int64_t start);

typedef struct ch_sample_options {
    uint64_t seed;
    bool     stop_on_empty; /* end when the first of them does; else when all have */
    bool     same_each_time;
} ch_sample_options;

/* Each element from one of the datasets, drawn by weight; NULL weights are equal. */
CH_API ch_dataset *ch_dataset_sample_from(int n, ch_dataset *const *d, const double *weight,
                                          const ch_sample_options *opt);

/* ---- a dataset for each element ----
 *
 * The function is called once, when the dataset is made, to say what is done: it is given a
 * dataset of one element, which will be each element in turn, and returns the dataset to take
 * from in its place. It takes over what it is given. */

typedef ch_dataset *(*ch_dataset_fn)(ch_dataset *element, void *arg);

CH_API ch_dataset *ch_dataset_flat_map(ch_dataset *d, ch_dataset_fn fn, void *arg);

typedef struct ch_interleave_options {
    int cycle; /* how many are open at a time, and worked on by threads; 0 is 8 */
    int block; /* elements taken from one before the next; 0 is 1 */
    /* From whichever has one ready, not in turn: one that is slow, or that waits for a disk,
     * holds up no other. */
    bool unordered;
} ch_interleave_options;

CH_API ch_dataset *ch_dataset_interleave(ch_dataset *d, ch_dataset_fn fn, void *arg,
                                         const ch_interleave_options *opt);

typedef struct ch_window_options {
    int64_t shift;          /* from one window's first element to the next's; 0: size */
    int64_t stride;         /* from one element of a window to its next; 0 is 1 */
    bool    drop_remainder; /* windows that are short are left out */
} ch_window_options;

/* The function is given a dataset of the window's `size` elements; NULL batches them. */
CH_API ch_dataset *ch_dataset_window(ch_dataset *d, int64_t size, ch_dataset_fn fn, void *arg,
                                     const ch_window_options *opt);

/* ---- keeping ---- */

/* Keeps the elements of the first whole pass: later ones take them from there, and do nothing of
 * what comes before. A pass with an error in it is not whole: the next one does it all again. `path`
 * NULL: in memory. Else in that file, for later processes too; names that
 * end in .gz and .zst are compressed. It appears when the pass is whole; one that ends early
 * leaves nothing. A file that holds another dataset's elements is an error: it is
 * known by the description and by data in memory, not by what is in files or C functions, so remove
 * it when these change. */
CH_API ch_dataset *ch_dataset_cache(ch_dataset *d, const char *path);
/* Works ahead, up to `n` elements: 0 to 65536, of which more than 256 are as 256; 0: as it turns out to be useful.
 * Iterators do so behind the last stage anyway. */
CH_API ch_dataset *ch_dataset_prefetch(ch_dataset *d, int n);

/* ---- options ---- */

typedef enum ch_shard_policy {
    CH_SHARD_AUTO = 0,
    CH_SHARD_FILE = 1,
    CH_SHARD_DATA = 2,
    CH_SHARD_HINT = 3,
    CH_SHARD_OFF = CH_OFF
} ch_shard_policy;

typedef struct ch_dataset_options {
    ch_shard_policy shard;
    int threads; /* that work ahead; 0: one for each core; CH_OFF: the caller's alone */
    /* Stages that work on each element, and interleave, may give what is ready first. */
    bool unordered;
    /* That elements in buffers may take: those made beforehand, in shuffles, in caches in memory. What
     * works ahead does so within this; where the least that is needed is more, RESOURCE_EXHAUSTED
     * names the stage. 0: no limit but the number of elements. */
    int64_t memory_bytes;
} ch_dataset_options;

/* Fields that are not zero hold for all of the pipeline; the outermost wins. */
CH_API ch_dataset *ch_dataset_with_options(ch_dataset *d, const ch_dataset_options *opt);

/* ---- over machines ---- */

/* Encodes into memory that ch_bytes_free returns. Data in memory goes along; a C function
 * cannot, and is UNIMPLEMENTED, the stage named. doc/dataset-format.md. */
CH_API CH_MUST_CHECK ch_status ch_dataset_encode(const ch_dataset *d, void **bytes, size_t *n);
/* Decodes what came from anywhere; nothing in the bytes is trusted. */
CH_API CH_MUST_CHECK ch_status ch_dataset_decode(const void *bytes, size_t n, ch_dataset **out);

typedef enum ch_batch_split {
    /* By the sizes of a full batch; a short one fills replicas in order. Where no size is known (a
     * generator's, a C function's, that of a map which does not keep the rows) as CH_SPLIT_EVEN. */
    CH_SPLIT_NOMINAL,
    CH_SPLIT_EVEN /* every batch as evenly as it can be, the first ones getting one more */
} ch_batch_split;

typedef struct ch_input_context {
    int n_pipelines, pipeline; /* workers, and which of them this is; n_pipelines 0 is 1 */
    int n_replicas;            /* in all, a multiple of n_pipelines; 0 is n_pipelines */
    ch_batch_split split;
    int worker, n_workers; /* of a coordinator's data: whose it is, of so many; else 0 and 0 */
} ch_input_context;

/* What worker `pipeline` reads: batches of `d` are cut for the n_replicas, and the data is divided
 * by the dataset's policy. Elements that are no batches, with a scalar among their components, cannot be
 * cut: with one replica a worker they stay whole, and CH_SHARD_DATA gives worker w elements w, w + W ...;
 * with more it is INVALID_ARGUMENT. Element k goes to the worker's replica k mod (n_replicas / n_pipelines).
 * The log says which policy was chosen and why. Borrows `d`. */
CH_API CH_MUST_CHECK ch_status ch_dataset_distribute(ch_dataset             *d,
                                                     const ch_input_context *context,
                                                     ch_dataset            **out);
/* The dataset of worker `context->pipeline`, from a function that is told which worker that is. What it
 * gives is left as it is, neither cut nor divided: element k goes to the worker's replica
 * k mod (n_replicas / n_pipelines). */
typedef ch_dataset *(*ch_input_fn)(const ch_input_context *context, void *arg);
CH_API CH_MUST_CHECK ch_status ch_dataset_from_function(ch_input_fn fn, void *arg,
                                                        const ch_input_context *context,
                                                        ch_dataset            **out);
/* Rows of a replica where `global` rows are for all; INVALID_ARGUMENT if they do not divide. */
CH_API CH_MUST_CHECK ch_status ch_input_context_batch_size(const ch_input_context *c,
                                                           int64_t global, int64_t *out);
/* "InputContext(input pipeline id 1, total: 3)" */
CH_API int ch_input_context_print(const ch_input_context *c, char *text, size_t size);
/* The size of the batches; CH_UNKNOWN if it is not one number, or cannot be told. */
CH_API int64_t ch_dataset_batch_size(const ch_dataset *d);

#endif
