/* cohort/function.h -- a named step with its graphs and programs: the thing that is run.
 *
 *     ch_function *train = NULL;
 *     rc = ch_function_new("train", train_step, &job, &train);
 *     rc = ch_strategy_run(NULL, train, batch, &out);      // records, plans, runs
 *     rc = ch_strategy_run(NULL, train, batch, &out);      // runs
 *
 * The step is recorded when it first runs with inputs of these names, dtypes and sizes past
 * axis 0. Each number of rows gets a program of its own: every size a number, all memory
 * planned. At most 64 recordings and 64 programs are kept, the least recently used goes first,
 * a recording with its programs; when the tenth program is made, the log says which size keeps
 * changing and which call makes it constant.
 *
 * Ragged inputs are two leaves of a batch, "x/values" and "x/row_splits" (the option `ragged` of
 * ch_dataset_batch makes them). In a step, the values are a node with as many rows as there are
 * values. If every use of that node is elementwise, or by ch_embedding_bag, a program serves many
 * numbers of values: those up to the next 1, 1.25, 1.5 or 1.75 times a power of two. Any other use
 * is exact too, but has each number of values planned anew. Results always have the rows that the
 * values have. The values of a batch from a dataset are not copied for this; others may be.
 *
 * A function finds its variables by name each time, in the strategy that runs it, and holds none of them: if one is
 * freed and another is made with its name, dtype and shape, it is that one from then on; if none is, a run is
 * NOT_FOUND.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_FUNCTION_H
#define COHORT_FUNCTION_H

#include "cohort/graph.h"
#include "cohort/step.h"

typedef struct ch_function ch_function;

/* `arg` is borrowed until the function is freed. The name is copied. */
CH_API CH_MUST_CHECK ch_status ch_function_new(const char *name, ch_step_fn step, void *arg,
                                               ch_function **out);
/* A function over a graph that was recorded before, here or elsewhere; references it. Its
 * variables are looked up by name in the strategy that runs it. Inputs come in the order of the
 * graph's; those with a name must have the graph's. */
CH_API CH_MUST_CHECK ch_status ch_function_of_graph(const char *name, ch_graph *graph,
                                                    ch_function **out);
CH_API ch_function            *ch_function_ref(ch_function *f);
CH_API void                    ch_function_unref(ch_function *f);

/* Records axis 0 of the inputs as numbers too: one recording for each number of rows. For
 * steps that need to know it; without this call, they find out and do the same. */
CH_API void ch_function_static_rows(ch_function *f);

CH_API const char *ch_function_name(const ch_function *f);
/* How often the step was recorded, ever, and how many programs are kept. */
CH_API int ch_function_recordings(const ch_function *f);
CH_API int ch_function_programs(const ch_function *f);

/* The graph that was used last; NULL if the function has not run. Borrowed. */
CH_API ch_graph *ch_function_graph(ch_function *f);
/* Writes the program that was used last, as snprintf does: each kernel call with its memory,
 * then the arena. */
CH_API int ch_function_print_plan(ch_function *f, char *text, size_t size);

/* Calls `see` after each node of every later run, with its outputs: for debugging. While one is
 * set, runs are node by node: nothing is fused or folded, and no memory is used twice. The
 * kernels are the same, so the results are the same bits, but for products and convolutions that
 * otherwise do their bias or activation themselves: these may differ in the last place. NULL ends
 * it. */
typedef void (*ch_node_see)(const char *node, int replica, int n, ch_tensor *const *out,
                            void *arg);
CH_API void ch_function_watch(ch_function *f, ch_node_see see, void *arg);

#endif
