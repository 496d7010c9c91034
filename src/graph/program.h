/* graph/program.h -- programs: a specialised graph as a flat list of kernel calls over planned
 * memory.
 *
 * A program is made for given input shapes. It does not change, and the replicas with these
 * shapes share it. An instance is a program on a device: its calls with addresses.
 *
 * Every input, output and scratch of an instruction has a slot. The location of a slot
 * (ch_location) determines when its address is set: constants once, the arena when the
 * workspace of the device moves, and inputs, outputs and resources in every run.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_PROGRAM_H
#define GRAPH_PROGRAM_H

#include <pthread.h>

#include "graph/graph.h"
#include "tensor/device.h"
#include "tensor/row_marks.h"

typedef enum ch_location_kind {
    CH_AT_NOWHERE, /* no location yet, or no memory */
    CH_AT_ARENA,
    CH_AT_CONSTANT, /* `data` points to the elements */
    CH_AT_INPUT,
    CH_AT_OUTPUT,
    CH_AT_RESOURCE
} ch_location_kind;

/* The location of a value. */
typedef struct ch_location {
    ch_location_kind kind;
    int              index;  /* index of the input, output or resource */
    size_t           offset; /* byte offset from its beginning */
    const void      *data;   /* CH_AT_CONSTANT only */
    /* by core: a further byte offset, in the arena of the program; NULL: none */
    const size_t *by_core;
} ch_location;

/* A write of rows into resources: marks the rows of the ids in the marks of each resource. The
 * planner adds it before a call that updates resources in place and changes only the rows of
 * its ids (ch_op.changed_rows). */
typedef struct ch_row_write {
    int64_t n_ids;
    bool    wide; /* ids are i64; otherwise i32 */
    int     n;    /* resources that the call writes */
    int     resource[];
} ch_row_write;

/* An instruction of a program: a kernel call, a copy, a barrier or a mark of rows. */
typedef struct ch_instr {
    const ch_node   *node;   /* NULL: an instruction that the planner added */
    const ch_kernel *kernel; /* NULL: copy copy_bytes bytes from in[0] to out[0] */
    /* The instruction marks the rows of the ids in[0], if the run has marks, and does nothing
     * else. NULL: it is no mark. */
    const ch_row_write *row_write;
    void               *state;
    size_t              copy_bytes, scratch_bytes;
    int                 n_in, n_out;
    int          first_slot; /* first of n_in + n_out + 1 slots: inputs, outputs, scratch */
    int          n_phases, tiles[CH_MAX_PHASES];
    ch_work_kind work;
    /* only the first of the members that share a variable executes the instruction */
    bool first_only;
    bool is_barrier; /* waits until all members have arrived, and does nothing else */
} ch_instr;

/* The slots of a location kind, which need a new address in every run. */
typedef struct ch_patches {
    int n;
    struct ch_patch {
        int           slot, index;
        size_t        offset;
        const size_t *by_core; /* ch_location.by_core */
    } * at;
} ch_patches;

typedef struct ch_program {
    atomic_int refs;
    ch_arena   arena;
    ch_graph  *graph; /* the specialised graph, referenced */
    int        n_instrs;
    ch_instr  *instr;
    /* Index of the first instruction that may write a resource. From here on no kernel can
     * fail. */
    int n_commit;
    /* The program writes a resource, so replicas must pass a barrier before instruction
     * n_commit. */
    bool writes;
    /* by resource: the program writes it, and not only by row writes: any row may change */
    bool        *writes_all;
    int          n_slots;
    ch_location *slot;
    /* size of the arena, and the largest number of bytes in use at the same time */
    size_t arena_bytes, live_bytes;
    /* pages of the arena must not be touched in advance (ch_prep.touches_part) */
    bool    touches_part;
    size_t *output_bytes;
    bool    has_collective;
    /* parts of inputs and constants that the program reads where they are, and parts of results
     * that it computes where they belong; and the bytes of these parts */
    int        n_parts_in_place;
    int64_t    bytes_in_place;
    ch_patches inputs, outputs, resources;
} ch_program;

typedef struct ch_plan_options {
    bool        keep_all; /* for observed runs: no fusion, no folding, and no reuse of memory */
    int         threads;  /* number of threads of the devices */
    const bool *shared;   /* by resource: storage is shared by several members; NULL: none */
} ch_plan_options;

/* Runs the passes on a specialised graph, which changes g, and plans a program. The program
 * references g. */
ch_status   ch__program_new(ch_graph *g, const ch_plan_options *opt, ch_program **out);
ch_program *ch__program_ref(ch_program *p);
void        ch__program_unref(ch_program *p);
/* Prints the instructions with their locations, and the size of the arena. Truncates and
 * returns the whole length, as snprintf does. */
int ch__program_print(const ch_program *p, char *text, size_t size);

/* ---- instances ---- */

typedef struct ch_instance ch_instance;

/* Creates an instance, which references the program. The caller must free it. */
ch_status ch__instance_new(ch_program *p, ch_instance **out);
void      ch__instance_free(ch_instance *x);
/* The same in memory of the caller, for bodies: at least ch__instance_bytes, aligned. The
 * instance needs no free. The caller must keep the program alive. */
size_t       ch__instance_bytes(const ch_program *p);
ch_instance *ch__instance_at(ch_program *p, void *memory);

/* The memory and settings of a run. The arrays have the order of the graph's inputs, outputs
 * and resources. */
typedef struct ch_bind {
    const void *const *input;
    void *const       *output;
    void *const       *resource;
    /* by resource: receives the rows that the program writes; NULL: its rows are not marked.
     * The array is NULL if no rows are marked, and for all replicas but one. */
    ch_row_marks *const *marks;
    pthread_mutex_t     *marking;  /* locked while rows are marked; NULL: one core marks */
    bool                 is_first; /* executes the instructions that are first_only */
    char                *arena;    /* program->arena_bytes bytes */
    unsigned             arena_generation; /* must change when `arena` changes */
    const ch_env        *env;
    ch_team             *team;
    /* Blocks until all members have arrived. Called before the first write of any program of
     * the run, and by barrier instructions; an error ends the run. NULL: there is no other
     * member, or no program writes. */
    ch_status (*barrier)(void *arg);
    void     *barrier_arg;
    ch_clock *clock; /* NULL: the run is not timed */
    /* Called after each instruction that belongs to a call. NULL: no observer. */
    void (*see)(void *arg, const ch_instr *instr, const ch_call *call);
    void *see_arg;
    /* Set to the node of each instruction before it runs, for error messages of other replicas.
     * NULL: not needed. */
    ch_current_call *doing;
} ch_bind;

/* Runs the program from the beginning. Returns the first error of a call, or CH__BLOCKED
 * (graph/run.h). */
ch_status ch__instance_run(ch_instance *x, const ch_bind *b);
/* Continues after CH__BLOCKED, with the call that returned it. `b` must be the same as in the
 * run. */
ch_status ch__instance_continue(ch_instance *x, const ch_bind *b);

/* Returns the first kernel of the op that fits a specialised call; NULL: none. */
const ch_kernel *ch__kernel_for(const ch_node *n);
/* Runs a single specialised call with memory of the caller: for constant folding and tests. */
ch_status ch__call_run(const ch_node *n, const ch_kernel *k, const void *const *in,
                       void *const *out, const ch_env *env, ch_team *team);

#endif
