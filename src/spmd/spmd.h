/* spmd/spmd.h -- the partitioner: divides the step of a replica among the cores of the replica.
 *
 * strategy/ calls ch__spmd_divide for the specialised graphs of a run (ch_run_ops.partition).
 * The result is a graph for each core. Cores whose graphs differ only in positions share one.
 * Layouts are decided once, on the graph with the largest inputs, and hold for all replicas of
 * the run, so that the replicas have the same calls in the same order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_SPMD_H
#define SPMD_SPMD_H

#include "graph/graph.h"
#include "spmd/layout.h"
#include "spmd/report.h"

enum { CH_IMAGE_RANK = 4 }; /* of a batch of images: row, height, width, channel */

typedef struct ch_spmd_options {
    int        n_cores;
    int        n_mesh; /* axes of the logical mesh; their product is n_cores */
    const int *mesh;
    /* Sets *out to the layout in which the cores store a variable, *source to its origin, and
     * *rule to the name of the split rule that it comes from, borrowed (CH_LAYOUT_RULE). */
    ch_status (*variable)(void *arg, const ch_resource *r, ch_core_layout *out,
                          ch_layout_source *source, const char **rule);
    void *arg;
    /* 1 plus the axis along which the inputs of the step are split over all cores: axis 0 of
     * all inputs, or another axis of those of rank CH_IMAGE_RANK; 0: the step decides */
    int  input_axis;
    bool defaults_to_core_0; /* of values whose layout nothing decides; false: replicated */
    bool regathers;          /* values of variables are gathered again for the backward pass */
    /* bytes that may be moved to save an arithmetic operation; 0: the default, 0.1 */
    double bytes_per_operation;
} ch_spmd_options;

/* Returns the bytes that may be moved to save an arithmetic operation. */
static inline double ch__bytes_per_operation(const ch_spmd_options *opt)
{
    return opt->bytes_per_operation > 0 ? opt->bytes_per_operation : 0.1;
}

/* Returns the replica with the largest inputs, whose graph decides the layouts of all. */
int ch__largest_replica(int n, ch_graph *const *graph);
/* Sets core[r * n_cores + c] to the graph of core c of replica r, referenced; `graph` is by
 * replica. Sets *report to a report of the division of replica 0, which the caller must free
 * with ch__step_report_free; `report` may be NULL. */
ch_status ch__spmd_divide(const ch_spmd_options *opt, int n_replicas, ch_graph *const *graph,
                          ch_graph **core, ch_step_report **report);

#endif
