/* graph/program.h -- a specialised graph as a flat list of kernel calls over planned memory.
 *
 * A program is made once for a signature and shared by the replicas that have it; it holds
 * nothing that changes. An instance is a program on one device: the same calls with
 * addresses filled in. What an address is relative to (a place) decides when it is filled in:
 * constants once; the arena when the device's workspace moves; inputs, outputs and resources
 * on every run.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_PROGRAM_H
#define GRAPH_PROGRAM_H

#include "graph/graph.h"
#include "tensor/device.h"

typedef enum ch_location_kind {
    CH_AT_NOWHERE,
    CH_AT_ARENA,
    CH_AT_CONSTANT, /* index: unused; data is the constant's own */
    CH_AT_INPUT,
    CH_AT_OUTPUT,
    CH_AT_RESOURCE
} ch_location_kind;

typedef struct ch_location {
    ch_location_kind kind;
    int              index;  /* which input, output or resource */
    size_t           offset; /* bytes from its beginning */
    const void      *data;   /* of a constant */
} ch_location;

typedef struct ch_instr {
    const ch_node   *node;   /* NULL: a copy that the planner added */
    const ch_kernel *kernel; /* NULL: memcpy of copy_bytes from in[0] to out[0] */
    void            *state;
    size_t           copy_bytes, scratch_bytes;
    int              n_in, n_out;
    int              first_slot; /* its addresses: inputs, outputs, scratch */
    int              n_phases, tiles[CH_MAX_PHASES];
    ch_work_kind     work;
    bool             first_only; /* the first replica does it for all */
    bool             is_barrier;      /* does nothing, but all replicas have come so far */
} ch_instr;

/* Slots whose address is another one on every run. */
typedef struct ch_patches {
    int n;
    struct ch_patch {
        int    slot, index;
        size_t offset;
    } * at;
} ch_patches;

typedef struct ch_program {
    atomic_int   refs;
    ch_arena     arena;
    ch_graph    *graph;
    int          n_instrs;
    ch_instr    *instr;
    int          n_commit; /* instructions before this one change nothing outside the arena */
    bool         writes;   /* a resource: replicas must agree at n_commit */
    int          n_slots;
    ch_location *slot;
    size_t       arena_bytes, live_bytes; /* planned, and the most that is alive at one time */
    bool         touches_part; /* of the arena: its pages must not be touched beforehand */
    size_t      *output_bytes;
    bool         has_collective;
    ch_patches   inputs, outputs, resources;
} ch_program;

typedef struct ch_plan_options {
    bool        keep_all; /* for watching: no fusion, no folding, no memory used twice */
    int         threads;  /* of the devices it will run on */
    const bool *shared;   /* by resource: it is one for all replicas; NULL: none is */
} ch_plan_options;

/* Plans a specialised graph, after its passes; keeps a reference to it. */
ch_status   ch__program_new(ch_graph *g, const ch_plan_options *opt, ch_program **out);
ch_program *ch__program_ref(ch_program *p);
void        ch__program_unref(ch_program *p);
/* Each call with its places, then the arena; as snprintf does. */
int ch__program_print(const ch_program *p, char *text, size_t size);

/* ---- on a device ---- */

typedef struct ch_instance ch_instance;

ch_status ch__instance_new(ch_program *p, ch_instance **out);
void      ch__instance_free(ch_instance *x);
/* The same in memory of the caller's, which keeps the program alive: for bodies. */
size_t       ch__instance_bytes(const ch_program *p);
ch_instance *ch__instance_at(ch_program *p, void *memory);

/* What a run hands to an instance. The arrays are indexed as the graph's. */
typedef struct ch_bind {
    const void *const *input;
    void *const       *output;
    void *const       *resource;
    char              *arena;            /* program->arena_bytes */
    unsigned           arena_generation; /* differs when arena does */
    const ch_env      *env;
    ch_team           *team;
    /* Called before the first write; an error ends the run there. NULL: nobody to ask. */
    ch_status (*barrier)(void *arg);
    void     *barrier_arg;
    ch_clock *clock; /* NULL: it is not timed */
    /* Called after each instruction; NULL: not. */
    void (*see)(void *arg, const ch_instr *instr, const ch_call *call);
    void *see_arg;
    /* Where it says before each instruction whose it is, for those who wait for it; NULL: nowhere. */
    ch_doing *doing;
} ch_bind;

/* Runs the program from its beginning. If a call returns an error or CH__BLOCKED (graph/run.h), that is
 * returned at once. */
ch_status ch__instance_run(ch_instance *x, const ch_bind *b);
/* Continues after CH__BLOCKED, with the call that returned it. `b` must be that of the run. */
ch_status ch__instance_continue(ch_instance *x, const ch_bind *b);

/* The kernel that would run a specialised call: the first candidate that fits. */
const ch_kernel *ch__kernel_for(const ch_node *n);
/* Runs one specialised call by itself, with memory of the caller's: for folding and tests. */
ch_status ch__call_run(const ch_node *n, const ch_kernel *k, const void *const *in,
                       void *const *out, const ch_env *env, ch_team *team);

#endif
