/* cohort/function.h -- functions: a step with its recorded graphs and compiled programs.
 *
 * A function corresponds to a tf.function of TensorFlow. When the function runs with new kinds
 * of inputs, it calls the step to record a graph, and plans a program from the graph. Later
 * runs use the program.
 *
 *     ch_function *train = NULL;
 *     rc = ch_function_new("train", train_step, &job, &train);
 *     rc = ch_strategy_run(NULL, train, batch, &out); // records, plans, runs
 *     rc = ch_strategy_run(NULL, train, batch, &out); // runs
 *     ch_function_unref(train);
 *
 *   - Functions are reference counted. Several threads may run the same function. The functions
 *     below that describe the last run must not be called while another thread runs the
 *     function.
 *   - Recordings: a step is recorded for each combination of names, dtypes and sizes of the
 *     inputs, except the size of axis 0.
 *   - Programs: each number of rows has its own program, in which all sizes are numbers and all
 *     memory is planned.
 *   - At most 64 recordings and 64 programs are kept. The least recently used is dropped first,
 *     a recording with its programs. When the tenth program is made, the log says which size
 *     changes, and which call makes it constant. Capacities of ragged inputs, see below, do not
 *     count.
 *   - Variables: a function finds its variables by name in each run, in the strategy that runs
 *     it, and holds no reference to them. If a variable is freed and another is created with
 *     the same name, dtype and shape, the function uses the new variable. If there is none, the
 *     run returns NOT_FOUND.
 *
 * Ragged inputs are two leaves of a batch, "x/values" and "x/row_splits", as the option
 * `ragged` of ch_dataset_batch makes them. In the step, the values are a node with a row for
 * each value. A program serves many numbers of values, all up to the next capacity, if only ops
 * of these kinds use the values and nodes with as many rows:
 *
 *   - Elementwise ops, ch_dropout and random numbers.
 *   - Ops on each row: products with a matrix, softmax, normalisations and cross entropies over
 *     the last axis; reductions, slices, concatenations and transpositions of other axes.
 *   - Lookups by the values: ch_gather and ch_gather_nd along axis 0, ch_one_hot and
 *     ch_embedding_bag. ch_embedding_bag with the rows as its table adds them up by row splits.
 *   - Reductions over the values: ch_sum, ch_mean, ch_max and similar, ch_segment_sum,
 *     ch_scatter_add and the other scatters, and ch_rows, the number of values.
 *   - Gradients of these, except those of ch_prod and of ch_mean in 16-bit floats.
 *
 * Capacities are 32, 64, 128 and 256; above 256 they are 1, 1.25, 1.5 and 1.75 times a power of
 * two. So batches of up to 4096 values need at most 20 programs. If a step has several ragged
 * inputs, each combination of capacities needs a program. When a recording has 8 programs, a
 * new combination uses for each input the largest capacity so far or, if that is too small, a
 * power of two. So two ragged inputs of up to 4096 values each need at most 20 programs, too,
 * and each further ragged input needs at most 7 more.
 *
 * Other ops are exact too, but need a program for each number of values. Examples are ch_sort,
 * ch_reverse and cumulative sums over axis 0, bodies of branches and loops, and
 * ch_embedding_bag with the row splits of another input or with computed row splits. Results
 * have as many rows as there are values. The values of a batch from a dataset are usually not
 * copied for their capacity; other values may be copied.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_FUNCTION_H
#define COHORT_FUNCTION_H

#include "cohort/graph.h"
#include "cohort/step.h"

typedef struct ch_function ch_function;

/* Creates a function from a step. `arg` is passed on to the step, and must be valid until the
 * function is freed. The name is copied. */
CH_API CH_MUST_CHECK ch_status ch_function_new(const char *name, ch_step_fn step, void *arg,
                                               ch_function **out);
/* Creates a function from a graph that was recorded before, in this process or another.
 * References the graph. Inputs must be in the order of the graph's inputs; an input with a name
 * must have the name of the graph's input. */
CH_API CH_MUST_CHECK ch_status ch_function_of_graph(const char *name, ch_graph *graph,
                                                    ch_function **out);
CH_API ch_function            *ch_function_ref(ch_function *f);
CH_API void                    ch_function_unref(ch_function *f);

/* Records axis 0 of the inputs as a number too: a recording for each number of rows. For a step
 * that needs the number of rows. Without this call the library detects such a step, and does
 * the same. */
CH_API void ch_function_static_rows(ch_function *f);

CH_API const char *ch_function_name(const ch_function *f);
/* Return how often the step has been recorded in total, and how many programs are kept. */
CH_API int ch_function_recordings(const ch_function *f);
CH_API int ch_function_programs(const ch_function *f);

/* ch_function_runs returns the number of runs that have started, which is also the number of
 * the next run. The random numbers of a step depend on the number of its run (cohort/random.h).
 * A program that continues a training in another process saves the number, and sets it there
 * with ch_function_set_runs before the first run. INVALID_ARGUMENT: `runs` is negative. */
CH_API int64_t                 ch_function_runs(const ch_function *f);
CH_API CH_MUST_CHECK ch_status ch_function_set_runs(ch_function *f, int64_t runs);

/* Returns the graph of the last run, borrowed until the next run. NULL: the function has not
 * run. */
CH_API ch_graph *ch_function_graph(ch_function *f);
/* Prints the program of the last run, as snprintf does: each kernel call with its memory, then
 * the arena. */
CH_API int ch_function_print_plan(ch_function *f, char *text, size_t size);

/* Calls `see` in every later run after each node, with the outputs of the node: for debugging.
 * `see` NULL ends it. Must not be called inside f's own step.
 *
 * While it is set, each node runs on its own: no ops are fused or folded, and no memory is
 * reused. The kernels are the same, so the results have the same bits, with an exception:
 * matrix products and convolutions that otherwise include a bias or activation may differ in
 * the last place. */
typedef void (*ch_node_see)(const char *node, int replica, int n, ch_tensor *const *out,
                            void *arg);
CH_API void ch_function_watch(ch_function *f, ch_node_see see, void *arg);

#endif
