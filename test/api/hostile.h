/* test/api/hostile.h -- declarations shared by the files of the hostile-call test.
 *
 * These files are the calls that tools/make-hostile-calls writes, hostile_objects.c, which
 * makes the arguments of the calls, and test_hostile.c, which makes the calls.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_API_HOSTILE_H
#define TEST_API_HOSTILE_H

#include <cohort/cohort.h>
#include <cohort/ops.h>
#include <cohort/strategy_ops.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- the calls ---- */

/* The context in which a call is made. */
typedef enum hostile_context {
    HOSTILE_PLAIN,       /* and also in a step, with usual arguments */
    HOSTILE_NOT_IN_STEP, /* not in a step, because the step itself uses the object */
    HOSTILE_IN_STEP,     /* while a step is recorded */
    HOSTILE_IN_MERGE,    /* in a merge call of a step */
    HOSTILE_IN_BUILD,    /* in the build function of a layer */
    HOSTILE_IN_TRAINING, /* in a callback of ch_fit */
} hostile_context;

typedef struct hostile_function {
    const char *name;
    /* Makes the call with usual arguments (0), or after hostile[n - 1]; -1: makes the objects and no
     * call. Returns true if it worked. */
    bool (*call)(int n);
    hostile_context    context;
    bool               works;   /* with usual arguments */
    const char *const *hostile; /* C statements; the last is NULL */
} hostile_function;

extern const hostile_function hostile_functions[]; /* the last entry has no name */

extern const char *hostile_long_text;      /* 20000 bytes */
extern char        hostile_zeros[1 << 14]; /* a list of NULLs or zeros */

/* Exit codes of the process of a call. Sanitizers have 1. */
enum {
    HOSTILE_WORKED,
    HOSTILE_REFUSED = 2,
    HOSTILE_BROKEN = 3,    /* CH_INTERNAL, or an error without a message */
    HOSTILE_NOT_MADE = 4,  /* the process could not be set up */
    HOSTILE_NOT_TRIED = 5, /* the function has no strategy, so its kind makes no difference */
};

/* ---- usual values of arguments ----
 *
 * Each function makes its object when it is first called, in the process of the call. Functions
 * marked "new" make an object in every call, because the library takes ownership of it. All
 * return NULL if the object cannot be made. */

extern bool usual_strategy_is_servers;
extern bool usual_strategy_was_used; /* usual_strategy was called */

ch_tensor    *usual_tensor(void);        /* f32 (2, 2) */
ch_tensor    *usual_ids(void);           /* i64 (2): 0, 1 */
ch_tensor    *usual_strings(void);       /* (2) */
ch_tensor    *usual_empty(void);         /* f32 (0, 2) */
ch_tensor    *usual_number(void);        /* f64 () */
ch_value     *usual_value(void);         /* a tensor for each replica */
ch_tuple     *usual_tuple(void);         /* usual_tensor, "x" */
ch_tuple     *usual_replica_tuple(void); /* usual_value, "x" */
ch_strategy  *usual_strategy(void);      /* two replicas: Mirrored, or usual_servers */
ch_var       *usual_var(void);           /* f32 (2, 2) */
ch_var       *usual_first_var(void);     /* CH_AGGREGATE_FIRST */
ch_var       *usual_worker_var(void);    /* per_worker */
ch_function  *usual_function(void);      /* gives input 0 */
ch_function  *usual_run_function(void);  /* the same, which has run */
ch_graph     *usual_graph(void);
ch_table     *usual_table(void);             /* of usual_ids */
ch_dataset   *usual_dataset(void);           /* batches x (2, 2), y (2, 2); new */
ch_dataset   *usual_rows(void);              /* elements x (2); new */
ch_dataset   *usual_files(const char *name); /* the name of a file of usual_write_files; new */
ch_iterator  *usual_iterator(void);
ch_iterator  *usual_distributed(void); /* for usual_strategy */
ch_layer     *usual_layer(void);       /* new */
ch_layer     *usual_built_layer(void);
ch_model     *usual_model(void); /* compiled */
ch_optimizer *usual_optimizer(void);
ch_optimizer *usual_averages(void); /* with the option `average`, and its slots made */
ch_metric    *usual_metric(void);
ch_callback  *usual_callback(void);
ch_callback  *usual_tensorboard(void);
ch_history   *usual_history(void);
ch_training  *usual_training(void); /* for HOSTILE_IN_TRAINING */
ch_example   *usual_example(void);
ch_record_writer         *usual_writer(void);
extern const ch_state_ops usual_state_ops;
ch_checkpoint            *usual_checkpoint(void); /* has the variable "w" */
ch_checkpoint_manager    *usual_manager(void);
ch_restored              *usual_restored(void);
ch_checkpoint_reader     *usual_reader(void); /* "w", f32 (4) in two slices */
ch_cluster               *usual_cluster(void);
ch_resolver              *usual_resolver(void);
ch_slurm_options          usual_slurm_options(void); /* also sets the environment */
ch_resolver              *usual_slurm(void);
ch_resolver              *usual_tpu(void);        /* "local" */
ch_tpu_topology          *usual_topology(void);   /* 2x2x1x2 */
ch_tpu_assignment        *usual_assignment(void); /* a replica of two cores */
ch_local_cluster         *usual_local_cluster(void);
ch_strategy              *usual_servers(void); /* ParameterServer over it */
ch_coordinator           *usual_coordinator(void);
ch_per_worker            *usual_per_worker(void); /* usual_dataset, not iterated */
ch_remote                *usual_remote(void);

typedef struct usual_bytes {
    void  *bytes;
    size_t n;
} usual_bytes;
usual_bytes usual_encoded_graph(void);
usual_bytes usual_encoded_dataset(void);
usual_bytes usual_encoded_cluster(void);
usual_bytes usual_encoded_topology(void);
usual_bytes usual_place(void); /* of usual_iterator */

extern char usual_text[64]; /* buffer for text */

/* Files that calls read, in the working directory. */
ch_status usual_write_files(void);

/* Functions for arguments that are function pointers or tables of functions. */
extern const ch_strategy_ops usual_strategy_ops;
extern const ch_resolver_ops usual_resolver_ops;
extern const ch_callback_ops usual_callback_ops;
extern const ch_layer_ops    usual_layer_ops;
extern const ch_generator    usual_generator;

ch_status   usual_host(void *arg, int n_in, ch_tensor *const *in, int n_out,
                       ch_tensor *const *out);
ch_status   usual_callback_fn(ch_training *t, ch_event event, void *arg);
ch_status   usual_save(ch_training *t, bool best, void *arg);
ch_status   usual_map(void *arg, ch_tuple *in, ch_tuple **out);
ch_status   usual_filter(void *arg, ch_tuple *in, bool *keep);
ch_status   usual_values(const ch_value_context *c, void *arg, ch_tuple **out);
ch_status   usual_creator(ch_var_spec *spec, void *arg);
ch_dataset *usual_input(const ch_input_context *context, void *arg);
ch_dataset *usual_dataset_fn(ch_dataset *element, void *arg);
double      usual_rate(int epoch, double rate, void *arg);
ch_status   usual_found(void *arg, const ch_checkpoint_found *found);
void        usual_sink(const ch_log_record *record, void *arg);
void        usual_see(const char *node, int replica, int n, ch_tensor *const *out, void *arg);
void        usual_release(void *arg);

void usual_step(ch_step *s, void *arg);   /* gives input 0 */
void usual_choose(ch_step *s, void *arg); /* gives true */
void usual_branch(ch_step *s, void *arg, ch_node **out);
void usual_scan(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x, ch_node **next,
                ch_node **y);
ch_node *usual_while_test(ch_step *s, void *arg, ch_node *const *state);
void     usual_while_body(ch_step *s, void *arg, ch_node *const *state, ch_node **next);
void     usual_merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg);
void     usual_pass(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg);
void usual_update(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out, void *arg);
ch_node *usual_forward(ch_step *s, int n_in, ch_node *const *in, bool training,
                       ch_layer *const *layer, void *arg);

/* The step that is being recorded, and nodes of it; all NULL outside of a recording. */
typedef struct hostile_recording {
    ch_step  *s;
    bool      is_body; /* in a merge call or a layer, so nodes cannot be results */
    ch_layer *layer;   /* the layer that is being built */
    ch_node  *x;       /* f32 (2, 2), an input */
    ch_node  *ids;     /* i64 (2), an input: 0, 1 */
    ch_node  *strings; /* (2), an input */
    ch_node  *empty;   /* f32 (0, 2) */
    ch_node  *flags;   /* bool (2, 2) */
    ch_node  *flag;    /* bool () */
    ch_node  *vector;  /* f32 (2) */
    ch_node  *number;  /* f32 () */
    ch_node  *step;    /* i64 () */
    ch_node  *splits;  /* i64 (2): 0, 2 */
    ch_node  *image;   /* f32 (2, 2, 2, 2), an input */
    ch_node  *deep;    /* f32 of rank 8 */
} hostile_recording;
extern hostile_recording recording;

/* ---- using results ----
 *
 * The test uses the results of each call, because a hostile value may cause a fault only
 * then. */

extern bool use_takes_gradients; /* also compute gradients of the nodes */

/* Returns true for CH_OK. Ends the process with HOSTILE_BROKEN for CH_INTERNAL or an error
 * without a message, because both are faults of the library. */
bool use_status(ch_status rc);
void use_char(const char *text);
void use_node(ch_node *n);
void use_tensor(ch_tensor *t);
void use_value(ch_value *v);
void use_tuple(ch_tuple *t);
void use_dataset(ch_dataset *d);
void use_iterator(ch_iterator *it);
void use_layer(ch_layer *l);
void use_model(ch_model *m);
void use_optimizer(ch_optimizer *o);
void use_metric(ch_metric *m);
void use_metric_spec(ch_metric_spec m);
void use_callback(ch_callback *c);
void use_history(ch_history *h);
void use_strategy(ch_strategy *st);
void use_var(ch_var *v);
void use_function(ch_function *f);
void use_graph(ch_graph *g);
void use_table(ch_table *t);
void use_cluster(ch_cluster *c);
void use_resolver(ch_resolver *r);
void use_tpu_topology(ch_tpu_topology *t);
void use_tpu_assignment(ch_tpu_assignment *a);
void use_remote(ch_remote *r);
void use_per_worker(ch_per_worker *p);
void use_init(ch_init i);
void use_schedule(ch_schedule s);
void use_partitioner(ch_partitioner p);

#endif
