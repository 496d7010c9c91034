/* cohort/dataset.h -- datasets: descriptions of input pipelines.
 *
 * A dataset is a tree of stages: sources, and stages that transform the elements of other
 * datasets. It only describes the pipeline. An iterator (cohort/iterator.h) runs it. An element
 * is a tuple of tensors, its components, with or without names.
 *
 *     ch_dataset *d = ch_dataset_tfrecord(ch_dataset_files("train-*.tfrecord", NULL), NULL);
 *     d = ch_dataset_parse_examples(d, 2, (ch_feature[]){
 *             {.name = "image", .dtype = CH_F32, .shape = ch_shape_of(28, 28)},
 *             {.name = "label", .dtype = CH_I64}});
 *     d = ch_dataset_batch(ch_dataset_shuffle(d, 10000, NULL), 256, NULL);
 *     rc = ch_iterator_new(d, NULL, &it);
 *     ch_dataset_unref(d);
 *
 *   - Ownership: a function below that returns a dataset takes over the datasets it is given,
 *     also on an error. Unref of the outermost dataset frees the whole tree. To use a dataset
 *     twice, pass ch_dataset_ref(d).
 *   - Errors: such a function returns NULL on an error, and also if a dataset it is given is
 *     NULL. Only ch_iterator_new must be checked: given NULL, it fails with that error.
 *   - Threads: a dataset never changes. Any number of threads and iterators may use it. It has
 *     no open file and no position.
 *   - A dataset without C functions can be encoded, sent to another machine and run there.
 *   - Randomness depends only on seeds and on positions in the data, never on time. Two
 *     iterators of a dataset give the same elements in the same order.
 *   - Limits, which errors name: 256 components of an element (a column of CSV can have many
 *     fields); 1024 threads, parallel calls of a map, and open datasets of an interleave;
 *     stages 256 deep and 16384 in all.
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

/* ---- properties ---- */

#define CH_INFINITE (-1)
#define CH_UNKNOWN  (-2)

/* Returns the number of elements, CH_INFINITE or CH_UNKNOWN. */
CH_API int64_t ch_dataset_cardinality(const ch_dataset *d);
/* Returns the number of components of an element, and sets *out to their specs. A size of -1
 * may differ between elements. The dataset owns the array. */
CH_API int ch_dataset_element_spec(const ch_dataset *d, const ch_tensor_spec **out);
/* Prints the tree as snprintf does, a stage on each line, the last stage first. */
CH_API int ch_dataset_print(const ch_dataset *d, char *text, size_t size);

/* ---- sources in memory ---- */

/* Creates a dataset with a single element: these tensors, which are referenced. `name`, or an
 * entry of it, may be NULL. */
CH_API ch_dataset *ch_dataset_of(int n, ch_tensor *const *t, const char *const *name);
/* Creates a dataset with an element for each row (axis 0) of the tensors, which must have
 * equally many rows. References the tensors, and copies nothing. */
CH_API ch_dataset *ch_dataset_slices(int n, ch_tensor *const *t, const char *const *name);
/* Creates a dataset of the i64 scalars from, from + step, ... up to `to`, which is not
 * included. */
CH_API ch_dataset *ch_dataset_range(int64_t from, int64_t to, int64_t step);

/* A source that is a C function. With the same `arg`, the functions are called by one thread at
 * a time. `arg` is the state: the result of `make`, or the `arg` of ch_dataset_generator. */
typedef struct ch_generator {
    const ch_tensor_spec *spec; /* of the elements; copied */
    int                   n_spec;
    /* Sets *out to the next element, NULL at the end. The library takes over the reference. */
    ch_status (*next)(void *arg, ch_tuple **out);
    /* Goes back to the first element. NULL: the source can be read only once. */
    ch_status (*restart)(void *arg);
    /* Save the position as a tensor of numbers, and go to a saved position. Both NULL: the
     * position of an iterator over the source cannot be saved. */
    ch_status (*save)(void *arg, ch_tensor **out);
    ch_status (*restore)(void *arg, ch_tensor *position);
} ch_generator;
/* Creates a dataset from a generator. It cannot be encoded.
 *
 * `make` is called with `arg` for every iterator, and creates the state that the functions are
 * called with. `drop` frees the state. Both are called by one thread at a time. If both are
 * NULL, `arg` is the state. Then only one iterator may use the dataset at a time, and only once
 * within its tree; a second use is FAILED_PRECONDITION. Such a dataset must not be in a
 * function of flat_map, interleave or window. */
CH_API ch_dataset *ch_dataset_generator(const ch_generator *g,
                                        ch_status (*make)(void *arg, void **out),
                                        void (*drop)(void *state), void *arg);

/* ---- sources in files ----
 *
 * A reader takes a dataset of file names, as string scalars or vectors of strings. It reads the
 * files one after the other; ch_dataset_interleave reads several at a time. Files with names
 * that end in .gz and .zst are decompressed. A file must be a regular file: a FIFO or a device
 * is INVALID_ARGUMENT. Errors name the file and the byte. */

typedef struct ch_files_options {
    bool     shuffle;      /* in random order; false: sorted bytewise, in every locale */
    uint64_t seed;         /* of the random order */
    bool     reshuffle;    /* in another order in each pass */
    bool     may_be_empty; /* accept a pattern without matches; false: it is an error */
} ch_files_options;

/* Creates a dataset of the file names that match a shell pattern, "data/train-*.tfrecord". The
 * files are searched when an iterator begins, on the machine on which it runs. A directory on
 * the path that cannot be read is an error that names it. */
CH_API ch_dataset *ch_dataset_files(const char *pattern, const ch_files_options *opt);
/* Creates a dataset of these names, in this order. Copies the names. */
CH_API ch_dataset *ch_dataset_file_list(int n, const char *const *path);

typedef struct ch_read_options {
    ch_compression compression;
    /* Skip records that are damaged or larger than the limits, and count them
     * (ch_iterator_skipped). Exhausted memory and failed reads are errors nevertheless. */
    bool skip_bad;
    /* Largest size of a record or line, in bytes; 0: 64 MiB. A larger record is an error, or is
     * skipped; the records after it are read. */
    int64_t max_record_bytes;
    int     max_expansion; /* limit for compressed files, as in ch_load_options */
} ch_read_options;

/* Reads the records of TFRecord files as string scalars. Verifies the checksums. */
CH_API ch_dataset *ch_dataset_tfrecord(ch_dataset *files, const ch_read_options *opt);
/* Reads records of `bytes` bytes. Ignores the first `header` and the last `footer` bytes of
 * each file. */
CH_API ch_dataset *ch_dataset_fixed_records(ch_dataset *files, int64_t bytes, int64_t header,
                                            int64_t footer, const ch_read_options *opt);
/* Reads the lines of text files as string scalars, without their ends (\n or \r\n). */
CH_API ch_dataset *ch_dataset_lines(ch_dataset *files, const ch_read_options *opt);
/* Read the array of each .npy or IDX file, an element for each row. `row` is the spec of a row;
 * NULL: it is read from the first file in this call. */
CH_API ch_dataset *ch_dataset_npy(ch_dataset *files, const ch_tensor_spec *row,
                                  const ch_read_options *opt);
CH_API ch_dataset *ch_dataset_idx(ch_dataset *files, const ch_tensor_spec *row,
                                  const ch_read_options *opt);
/* Reads the arrays of each .npz file that `row` names, an element for each row. n = 0: all
 * arrays of the first file that have rows. Scalars, and members that are not .npy, are
 * ignored. */
CH_API ch_dataset *ch_dataset_npz(ch_dataset *files, int n, const ch_tensor_spec *row,
                                  const ch_read_options *opt);

typedef struct ch_csv_options {
    ch_read_options read;
    bool            no_header; /* the first line is data */
    char            separator; /* 0: a comma */
} ch_csv_options;

/* Reads CSV files, an element for each line. A column gives a scalar, or a vector of
 * consecutive fields (`fields` of ch_csv_column). A field may be quoted: "with ""quotes"" and
 * line ends". Fields without a column are ignored. */
CH_API ch_dataset *ch_dataset_csv(ch_dataset *files, int n, const ch_csv_column *column,
                                  const ch_csv_options *opt);

typedef struct ch_libsvm_options {
    ch_read_options read;
    bool            from_zero; /* the first index is 0, not 1 */
    bool            sparse;    /* give "ids" i64 (?) and "values" f32 (?) instead of "x" */
} ch_libsvm_options;

/* Reads LibSVM files, lines "label index:value ...". The components are "x" f32 (n_features)
 * and "y" f32 (). */
CH_API ch_dataset *ch_dataset_libsvm(ch_dataset *files, int64_t n_features,
                                     const ch_libsvm_options *opt);

/* Parses tf.train.Example messages and returns n features of each. An element of `d` must have
 * a single component, a string.
 *
 * A record that is not an Example is an error that names the file and the byte. After a stage
 * that does not keep these, such as a cache or lines, it names the number of the record. If the
 * reader has skip_bad, the record is skipped instead. An Example that lacks a feature without a
 * default, or has another number or dtype of values, is not damaged: it is always
 * INVALID_ARGUMENT, because the features given here do not fit the data. */
CH_API ch_dataset *ch_dataset_parse_examples(ch_dataset *d, int n, const ch_feature *feature);

/* ---- stages for each element ---- */

typedef struct ch_map_options {
    /* Calls at the same time; 0: as many as there are threads. A C function is called by one
     * thread at a time, unless this is more than 1. */
    int  parallel;
    bool unordered; /* give results when they are ready: faster if calls take unequal times */
} ch_map_options;

/* Applies a step to each element. The components are the inputs of the step, and its outputs
 * are the components of the result. The step is recorded once, in this call. A step cannot
 * compute with strings: a string input can be looked up in a table (cohort/table.h), or be an
 * output unchanged. Random numbers depend on the number of the element, and not on the
 * thread. */
CH_API ch_dataset *ch_dataset_map(ch_dataset *d, ch_step_fn step, void *arg,
                                  const ch_map_options *opt);
/* Applies a C function to each element. The function sets *out to a tuple that matches `spec`;
 * the library takes over the reference. The dataset cannot be encoded. */
typedef ch_status (*ch_map_fn)(void *arg, ch_tuple *in, ch_tuple **out);
CH_API ch_dataset *ch_dataset_map_call(ch_dataset *d, ch_map_fn fn, void *arg, int n_spec,
                                       const ch_tensor_spec *spec, const ch_map_options *opt);
/* Keeps the components with these names, in this order. "new=old" renames a component. A
 * component may also be given by its index: "0", "new=0". */
CH_API ch_dataset *ch_dataset_select(ch_dataset *d, int n, const char *const *name);

/* Keep the elements for which the only output of the step, a bool scalar, is true
 * (ch_dataset_filter), or for which the C function sets *keep to true
 * (ch_dataset_filter_call). */
CH_API ch_dataset *ch_dataset_filter(ch_dataset *d, ch_step_fn step, void *arg);
typedef ch_status (*ch_filter_fn)(void *arg, ch_tuple *in, bool *keep);
CH_API ch_dataset *ch_dataset_filter_call(ch_dataset *d, ch_filter_fn fn, void *arg);
/* Keep the elements before the first for which the step or the C function gives false. */
CH_API ch_dataset *ch_dataset_take_while(ch_dataset *d, ch_step_fn step, void *arg);
CH_API ch_dataset *ch_dataset_take_while_call(ch_dataset *d, ch_filter_fn fn, void *arg);

/* ---- batches ---- */

typedef struct ch_batch_options {
    bool drop_remainder; /* drop a short last batch; the batch size is then known */
    /* A component of variable size becomes two components: "x/values" and "x/row_splits";
     * without a name, "0/values" if it is the first. Unbatch, rebatch, the split over replicas
     * and steps recognise the pair by these names, also after a map that gives both.
     * cohort/function.h describes ragged inputs of a step. */
    bool ragged;
} ch_batch_options;

/* Combines `size` elements into an element with a new axis 0. Elements of unequal shapes are an
 * error, unless `ragged` is set; see also ch_dataset_padded_batch. */
CH_API ch_dataset *ch_dataset_batch(ch_dataset *d, int64_t size, const ch_batch_options *opt);

typedef struct ch_pad_options {
    bool            drop_remainder; /* drop a short last batch */
    const ch_shape *shape; /* for each component; -1: largest size in the batch; NULL: all -1 */
    const double   *value; /* padding for each component; NULL: 0; strings are padded with "" */
} ch_pad_options;

/* Combines `size` elements into an element with a new axis 0. Pads shorter elements at their
 * ends. */
CH_API ch_dataset *ch_dataset_padded_batch(ch_dataset *d, int64_t size,
                                           const ch_pad_options *opt);
/* Splits each element into its rows (axis 0): an element for each row. */
CH_API ch_dataset *ch_dataset_unbatch(ch_dataset *d);
/* Combines the rows into batches of size[0], size[1], ..., size[n - 1] rows, repeated. The
 * batch sizes of `d` do not matter. */
CH_API ch_dataset *ch_dataset_rebatch(ch_dataset *d, int n, const int64_t *size,
                                      const ch_batch_options *opt);

typedef struct ch_bucket_options {
    bool drop_remainder; /* drop a short last batch of each bucket */
    bool no_padding;     /* do not pad: elements of a batch must have equal lengths */
    /* Pad `component` to the longest length that its bucket allows, boundary - 1; false: to the
     * longest of the batch. */
    bool          pad_to_boundary;
    const double *value; /* padding for each component; NULL: 0 */
} ch_bucket_options;

/* Batches elements of similar length together. n boundaries make n + 1 buckets, each with its
 * own batch size. The length is the first size of component number `component`. A length equal
 * to boundary[i] is in bucket i + 1. */
CH_API ch_dataset *ch_dataset_bucket_by_length(ch_dataset *d, int component, int n,
                                               const int64_t           *boundary,
                                               const int64_t           *batch_size,
                                               const ch_bucket_options *opt);

/* ---- order and number of elements ---- */

typedef struct ch_shuffle_options {
    uint64_t seed;
    bool     same_each_time; /* the same order in each pass and epoch */
} ch_shuffle_options;

/* Shuffles the elements. Keeps a buffer of `buffer` elements, draws a random element of it, and
 * replaces that element by the next. The order is uniformly random only if the buffer is as
 * large as the data. */
CH_API ch_dataset *ch_dataset_shuffle(ch_dataset *d, int64_t buffer,
                                      const ch_shuffle_options *opt);
/* Repeats the dataset `count` times; CH_INFINITE: for ever. If `count` is CH_INFINITE or more
 * than 1024, a pass without elements ends the dataset. */
CH_API ch_dataset *ch_dataset_repeat(ch_dataset *d, int64_t count);
/* Keeps the elements index, index + n, index + 2n, ... If n is CH_BY_HINT, the distribution
 * sets n and index (CH_SHARD_HINT). An element that failed is counted too: its error goes to
 * the shard that the element belongs to. */
#define CH_BY_HINT (-1)
CH_API ch_dataset *ch_dataset_shard(ch_dataset *d, int64_t n, int64_t index);
/* Keep, or skip, the first `count` elements; CH_INFINITE: all. */
CH_API ch_dataset *ch_dataset_take(ch_dataset *d, int64_t count);
CH_API ch_dataset *ch_dataset_skip(ch_dataset *d, int64_t count);
/* Joins the components of n datasets into an element. Ends with the shortest dataset. If an
 * element of a dataset fails, the elements of the others at that position are dropped with a
 * single error, so that later elements stay aligned. */
CH_API ch_dataset *ch_dataset_zip(int n, ch_dataset *const *d);
/* Gives the elements of n datasets one after the other. Their dtypes and ranks must be
 * equal. */
CH_API ch_dataset *ch_dataset_concatenate(int n, ch_dataset *const *d);
/* Adds a first component: the number of the element, an i64 scalar, counted from `start`. */
CH_API ch_dataset *ch_dataset_enumerate(ch_dataset *d, int64_t start);

typedef struct ch_sample_options {
    uint64_t seed;
    bool     stop_on_empty;  /* end with the first dataset that ends; false: with the last */
    bool     same_each_time; /* the same draws in each pass and epoch */
} ch_sample_options;

/* Takes each element from one of n datasets, drawn at random by weight. `weight` NULL: all are
 * equal. */
CH_API ch_dataset *ch_dataset_sample_from(int n, ch_dataset *const *d, const double *weight,
                                          const ch_sample_options *opt);

/* ---- nested datasets ----
 *
 * These stages run a dataset for each element. The function describes that dataset. It is
 * called once, when the stage is created. It is given a dataset that stands for the current
 * element, takes it over, and returns the dataset to run. */

typedef ch_dataset *(*ch_dataset_fn)(ch_dataset *element, void *arg);

/* Replaces each element by the elements of its dataset, one dataset after the other. */
CH_API ch_dataset *ch_dataset_flat_map(ch_dataset *d, ch_dataset_fn fn, void *arg);

typedef struct ch_interleave_options {
    int cycle; /* datasets that are open at a time, each read ahead by threads; 0: 8 */
    int block; /* consecutive elements from a dataset; 0: 1 */
    /* Take elements from any dataset that has one ready, not in turn, so that a slow file or
     * disk does not delay the others. */
    bool unordered;
} ch_interleave_options;

/* Replaces each element by the elements of its dataset, several datasets in turn. */
CH_API ch_dataset *ch_dataset_interleave(ch_dataset *d, ch_dataset_fn fn, void *arg,
                                         const ch_interleave_options *opt);

typedef struct ch_window_options {
    int64_t shift;          /* elements from the start of a window to the next; 0: size */
    int64_t stride;         /* elements from an element of a window to the next; 0: 1 */
    bool    drop_remainder; /* drop windows that are short */
} ch_window_options;

/* Forms windows of `size` elements. The function is given a dataset of the elements of a
 * window. `fn` NULL: a window becomes a batch. */
CH_API ch_dataset *ch_dataset_window(ch_dataset *d, int64_t size, ch_dataset_fn fn, void *arg,
                                     const ch_window_options *opt);

/* ---- caching ---- */

/* Keeps the elements of the first complete pass. Later passes read them from the cache, and do
 * not run the stages before it. A pass with an error is not complete.
 *
 * `path` NULL: the cache is in memory. Else it is a file, which later processes use too; with a
 * name that ends in .gz or .zst it is compressed. The file appears when the pass is complete; a
 * pass that ends early leaves nothing. A file with the elements of another dataset is an error.
 * Datasets are compared by their description and by their data in memory, not by the contents
 * of files or by C functions. Remove the cache file when these change. */
CH_API ch_dataset *ch_dataset_cache(ch_dataset *d, const char *path);
/* Prefetches up to n elements in background threads. n is 0 to 65536, and more than 256 counts
 * as 256; 0: adapts the number. Iterators prefetch after the last stage anyway. */
CH_API ch_dataset *ch_dataset_prefetch(ch_dataset *d, int n);

/* ---- options ---- */

/* How ch_dataset_distribute divides the data among workers. */
typedef enum ch_shard_policy {
    CH_SHARD_AUTO = 0, /* FILE if there are enough files and the same data is read; else DATA */
    CH_SHARD_FILE = 1, /* each worker reads its own files */
    /* Each worker reads all data, and keeps its share of the rows of every batch. A share may
     * have no rows, so batches are never too few. Elements that are not batches are divided
     * whole; if there are fewer than workers, every worker gets INVALID_ARGUMENT. */
    CH_SHARD_DATA = 2,
    CH_SHARD_HINT = 3,    /* each ch_dataset_shard with CH_BY_HINT gets the worker's shard */
    CH_SHARD_OFF = CH_OFF /* each worker reads and keeps all data */
} ch_shard_policy;

typedef struct ch_dataset_options {
    ch_shard_policy shard;
    /* Background threads; 0: the number of cores; CH_OFF: none, the caller's thread does all
     * the work. */
    int threads;
    /* Allow stages that work on each element, and interleave, to give results when they are
     * ready. */
    bool unordered;
    /* Most bytes of buffered elements: prefetched, in shuffles, and in caches in memory.
     * Prefetching stays within it. If a stage needs more, RESOURCE_EXHAUSTED names it. 0: no
     * limit. */
    int64_t memory_bytes;
} ch_dataset_options;

/* Sets options of the whole pipeline. A field of 0 is not set. If options are set several
 * times, the outermost count. */
CH_API ch_dataset *ch_dataset_with_options(ch_dataset *d, const ch_dataset_options *opt);

/* ---- distribution ---- */

/* Encodes the dataset, with its data in memory. The caller frees `*bytes` with ch_bytes_free.
 * UNIMPLEMENTED: a stage contains a C function; the error names it. The format is described in
 * doc/dataset-format.md. */
CH_API CH_MUST_CHECK ch_status ch_dataset_encode(const ch_dataset *d, void **bytes, size_t *n);
/* Decodes untrusted bytes. */
CH_API CH_MUST_CHECK ch_status ch_dataset_decode(const void *bytes, size_t n, ch_dataset **out);

/* How a batch is cut for the replicas. */
typedef enum ch_batch_split {
    /* Each replica gets the rows that it gets of a full batch; a short batch fills the replicas
     * in order. If the batch size is not known (a generator, a C function, or a map that does
     * not keep the rows), as CH_SPLIT_EVEN. */
    CH_SPLIT_NOMINAL,
    CH_SPLIT_EVEN /* as evenly as possible; the first replicas may get a row more */
} ch_batch_split;

typedef struct ch_input_context {
    int            n_pipelines, pipeline; /* number of workers, 0: 1; index of this worker */
    int            n_replicas; /* of all workers, a multiple of n_pipelines; 0: n_pipelines */
    ch_batch_split split;
    /* For data of a coordinator (cohort/coordinator.h): index of the worker, and number of
     * workers. Else 0 and 0. */
    int worker, n_workers;
} ch_input_context;

/* Creates the dataset that worker `pipeline` reads. Cuts the batches of `d` for n_replicas
 * replicas, and divides the data by the dataset's ch_shard_policy. Element k goes to replica
 * k % (n_replicas / n_pipelines) of the worker. Borrows `d`. The log says which policy was
 * chosen, and why.
 *
 * Elements with a scalar component are not batches and cannot be cut. With a replica for each
 * worker they stay whole, and CH_SHARD_DATA gives worker w the elements w, w + n_pipelines, ...
 * With more replicas they are INVALID_ARGUMENT. */
CH_API CH_MUST_CHECK ch_status ch_dataset_distribute(ch_dataset             *d,
                                                     const ch_input_context *context,
                                                     ch_dataset            **out);
/* Creates the dataset of worker `context->pipeline` by calling `fn`, which is given the
 * context. The dataset is used unchanged: batches are not cut, and data is not divided. Element
 * k goes to replica k % (n_replicas / n_pipelines) of the worker. */
typedef ch_dataset *(*ch_input_fn)(const ch_input_context *context, void *arg);
CH_API CH_MUST_CHECK ch_status ch_dataset_from_function(ch_input_fn fn, void *arg,
                                                        const ch_input_context *context,
                                                        ch_dataset            **out);
/* Writes the rows of a replica if a global batch has `global` rows. `c` NULL is one pipeline
 * for one replica. INVALID_ARGUMENT: `global` is not a multiple of n_replicas. */
CH_API CH_MUST_CHECK ch_status ch_input_context_batch_size(const ch_input_context *c,
                                                           int64_t global, int64_t *out);
/* Prints "InputContext(input pipeline id 1, total: 3)", as snprintf does. */
CH_API int ch_input_context_print(const ch_input_context *c, char *text, size_t size);
/* Returns the number of rows of a batch, or CH_UNKNOWN if it varies or is not known. */
CH_API int64_t ch_dataset_batch_size(const ch_dataset *d);

#endif
