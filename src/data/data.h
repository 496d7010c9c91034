/* data/data.h -- internal interface of datasets and iterators: stages and cursors.
 *
 * A dataset describes an input pipeline as a tree of stages. A ch_stage defines a kind of
 * stage: its attributes, the types of its elements, and how it runs. The attributes are a
 * protobuf message, so the form in memory is also the form on the wire. A running stage is a
 * cursor (ch_cursor). Cursors form the same tree as the stages; each pulls elements from its
 * inputs.
 *
 * The files of data/ that implement stages include this header, and so do callers outside data/
 * that build or distribute datasets (fit/, strategy/, job/).
 *
 * Invariants:
 *   1. At most one thread uses a cursor at a time. A stage that works with several threads uses
 *      a workqueue (data/workqueue.h), which keeps this promise for the inputs of the stage.
 *   2. `next` returns an element, NULL at the end, or an error. After an error, the next call
 *      continues behind the failed element. After the end, every call returns the end again.
 *   3. The elements of a cursor depend only on its dataset, on the stream that the iterator
 *      reads (ch_stream_name) and on the number of rewinds. They never depend on time, threads
 *      or addresses. Stages with the option `unordered` are the exception: their order may
 *      vary.
 *   4. `save` writes everything that a new cursor needs to continue with the next element. It
 *      writes no data that can be had again: rows of tensors in memory are written as
 *      references (data/row_ref.h), and results of a workqueue that can be made again are left
 *      out: the position is then that of the input before it gave their inputs. This may be in
 *      an earlier pass.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_DATA_H
#define DATA_DATA_H

#include <pthread.h>

#include "base/protobuf.h"
#include "cohort/iterator.h"
#include "data/dataset.pb-c.h"
#include "data/element.h"
#include "graph/graph.h"
#include "tensor/print.h"

typedef struct ch_cursor ch_cursor;
typedef struct ch_saver  ch_saver;
typedef struct ch_loader ch_loader;

/* Traits of a stage, a bit mask. The distribution over workers (data/distribute.c) and the byte
 * budget (data/budget.h) use them. */
enum {
    CH_READS_FILES = 1,   /* opens files; its input gives their names */
    CH_KEEPS_BATCHES = 2, /* passes each batch of its inputs on without changing its rows */
    /* Passes on every element of its input, possibly in another order or several times. */
    CH_KEEPS_NAMES = 4,
    /* If each worker runs the stage on its own part of the data, the union of the results
     * equals the result on all data: the stage treats elements independently, or without
     * regard to their order and grouping. */
    CH_DIVIDES = 8,
    /* Each worker may run the stage on its own part, but the union differs from the result on
     * all data. The program must ask for the division. */
    CH_DIVIDES_IF_ASKED = 16,
    CH_HOLDS_ELEMENTS = 32, /* holds elements besides those in its workqueue */
    /* Holds an element only until `next` returns it, and none after a rewind. */
    CH_GIVES_UP_ELEMENTS = 64,
    CH_ONE_BY_ONE = 128 /* element k depends only on element k of its input */
};

/* A place in the sequence of elements that a cursor has returned. If `passes` is 0, it is the
 * place before the last n elements of this pass, and none of them was an error; all zero is the
 * present place. Otherwise it is the place before element n of the pass that began `passes`
 * rewinds before this pass. Then element n exists, and neither that pass nor a later one has
 * had an error. */
typedef struct ch_back {
    int64_t passes, n;
} ch_back;

typedef struct ch_stage {
    const char                       *name; /* also the name on the wire */
    int                               version;
    unsigned                          traits; /* CH_READS_FILES | ... */
    int                               n_in;   /* number of inputs; -1: any number, at least 1 */
    const ProtobufCMessageDescriptor *attrs;  /* NULL: no attributes */
    size_t                            cursor_bytes; /* size of the stage's cursor struct */
    /* Checks the attributes, which may be untrusted. Sets d->spec (with ch__dataset_set_parts
     * and similar calls), d->same_rows and d->cardinality. */
    ch_status (*infer)(ch_dataset *d);
    /* Returns true if the attributes allow elements in any order. NULL: always ordered. */
    bool (*is_unordered)(const ch_dataset *d);
    /* The stage opens its inputs itself, when it needs them. Until then no thread prefetches
     * for inputs that may never be read. */
    bool opens_inputs;
    /* Prepares the cursor to return its first element. The inputs are already open, unless
     * opens_inputs is set. */
    ch_status (*open)(ch_cursor *c);
    /* Invariant 2. *out is NULL before the call. */
    ch_status (*next)(ch_cursor *c, ch_element **out);
    /* Returns to the first element. The caller has incremented c->epoch. The stage must rewind
     * its own inputs. */
    ch_status (*rewind)(ch_cursor *c);
    /* Returns true if `save` can write the position that the cursor had at the place `to`,
     * which is not the present. NULL: it cannot. No job of a workqueue may run during the
     * call. */
    bool (*can_step_back)(ch_cursor *c, ch_back to);
    /* Writes the position of the cursor. The saver records errors. A stage with can_step_back
     * writes the position that it had at the place ch__save_place(s). */
    void (*save)(ch_cursor *c, ch_saver *s);
    /* Restores a position into a newly opened cursor. The contents of the loader are
     * untrusted. */
    ch_status (*load)(ch_cursor *c, ch_loader *l);
    /* Frees the state of the stage. Also called after `open` failed. The workqueue is closed
     * before this call. */
    void (*close)(ch_cursor *c);
} ch_stage;

/* ---- descriptions ---- */

/* Serialises the calls of a C function that must not run in two threads at a time. Stages that
 * were copied from each other share the lock, in all iterators and bodies. */
typedef struct ch_call_lock {
    atomic_int      refs;
    pthread_mutex_t lock;
    /* The user of the single state of a generator without `make`: an iterator and the path of
     * the cursor in it. */
    struct ch_iterator *user;
    uint64_t            path;
    int n_users; /* open cursors of that user; 2 while a restore replaces the old cursor */
} ch_call_lock;

/* C functions of the program. A dataset that has any cannot be encoded. */
typedef struct ch_data_call {
    ch_map_fn    map;
    ch_filter_fn filter;
    ch_generator generator;
    ch_status (*make)(void *arg, void **out);
    void (*drop)(void *state);
    void         *arg;
    ch_call_lock *call_lock; /* referenced by the stage; NULL in ch_dataset_make: a new lock */
} ch_data_call;

/* Stages may be shared, so a small description may stand for a very large tree. The size of the
 * tree is limited, so that every walk over an untrusted tree ends. */
enum { CH_MAX_PARTS = 256, CH_MAX_DATASET_DEPTH = 256, CH_MAX_DATASET_STAGES = 1 << 14 };

struct ch_dataset {
    atomic_int        refs;
    const ch_stage   *stage;
    ProtobufCMessage *attrs; /* owned */
    int               n_in;
    ch_dataset      **in;   /* referenced */
    ch_dataset       *body; /* run for each element by flat_map, interleave, window; or NULL */
    ch_dataset  *element;   /* the stage `element` that is the input of the body; referenced */
    ch_graph    *graph;
    ch_tuple    *data; /* tensors of a source in memory */
    ch_data_call call;
    int          depth, n_stages; /* of the tree */
    bool         shares_state;    /* contains a generator with a single state for all cursors */
    bool         skips_bad;       /* contains a record reader that skips damaged records */
    uint64_t     hash;            /* of the description, without data in memory */
    _Atomic uint64_t fingerprint; /* see ch__dataset_fingerprint; 0: not computed yet */
    /* The warning that every worker reads all data was logged (distribute.c, parts.c). */
    atomic_bool has_warned;
    bool        is_unordered; /* contains a stage that may return elements in any order */
    ch_dataset *next_free;    /* link of the list of stages that ch_dataset_unref frees */

    /* Set by infer. */
    int             n_parts;
    ch_tensor_spec *spec; /* n_parts components */
    char          **name; /* n_parts names that `spec` points at; owned */
    /* All parts with a first size of -1, except ragged ones, have the same number of rows. */
    bool    same_rows;
    int64_t cardinality; /* number of elements, CH_INFINITE or CH_UNKNOWN */

    ch_dataset_options options; /* of all `options` stages of the tree; the outermost wins */
};

/* Returns the attributes of `d` as a pointer to their message type. */
#define CH_ATTRS_OF(d, type) ((const type *)(const void *)(d)->attrs)

/* Arguments of ch__dataset_new. All may be zero. */
typedef struct ch_dataset_make {
    /* Status of building the attributes. If not CH_OK, ch__dataset_new returns NULL. */
    ch_status               rc;
    const ProtobufCMessage *attrs; /* copied */
    int                     n_in;
    /* Ownership passes to ch__dataset_new, even on error. A NULL entry is an input that could
     * not be made: its error was recorded then, and ch__dataset_new fails with it. */
    ch_dataset *const  *in;
    ch_dataset         *body, *element; /* ownership passes, even on error */
    ch_graph           *graph;          /* ownership passes, even on error */
    ch_tuple           *data;           /* ownership passes, even on error */
    const ch_data_call *call;           /* copied */
} ch_dataset_make;

/* Returns a new dataset, which the caller owns. On error, records the error of this thread and
 * returns NULL. */
ch_dataset *ch__dataset_new(const ch_stage *stage, const ch_dataset_make *m);
/* Returns true if the last error of this thread was that ch__dataset_new failed. */
bool ch__dataset_was_not_made(void);

/* The `infer` of stages whose elements have the type of their first input. */
ch_status ch__infer_like_input(ch_dataset *d);
/* For infer: allocates n parts, all zero, in place of the present ones. */
ch_status ch__dataset_parts(ch_dataset *d, int n);
/* Sets part i to a copy of `spec`, including its name. */
ch_status ch__dataset_set_part(ch_dataset *d, int i, const ch_tensor_spec *spec);
/* Sets exactly these n parts. */
ch_status ch__dataset_set_parts(ch_dataset *d, int n, const ch_tensor_spec *spec);
/* Copies parts, same_rows and cardinality from `from`. */
ch_status ch__dataset_like(ch_dataset *d, const ch_dataset *from);
/* Returns a hash of the description and of its data in memory. It does not cover C
 * functions. */
uint64_t ch__dataset_fingerprint(ch_dataset *d);
/* Widens the spec of `d` so that elements of `other` also match: a size that differs becomes
 * -1. Fails if the numbers of parts, their dtypes or ranks differ. */
ch_status ch__dataset_widen(ch_dataset *d, const ch_dataset *other);
/* Encodes n parts as a message. The arena owns the message. */
ch_status ch__spec_encode(ch_arena *a, int n, const ch_tensor_spec *spec,
                          Cohort__ElementSpec **out);
/* For infer: sets the parts and same_rows of `d` from an untrusted message. */
ch_status ch__dataset_set_spec(ch_dataset *d, const Cohort__ElementSpec *spec);
/* Records and returns CH_INVALID_ARGUMENT. The message begins with the stage: "batch: ...". */
ch_status ch__dataset_fail(const ch_dataset *d, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Returns CH_INVALID_ARGUMENT if the element does not match the spec of `d`. */
ch_status ch__dataset_check(const ch_dataset *d, const ch_element *e);

/* Returns the list of all stages, terminated by NULL. It is the only list (data/stages.c). */
const ch_stage *const *ch__stages(void);

/* Stages that other files refer to. */
extern const ch_stage ch__stage_element, ch__stage_options;
/* Returns the attributes of an `options` stage; all zero if `d` is another stage. */
ch_dataset_options ch__stage_options_of(const ch_dataset *d);
/* Implements ch_dataset_cache with a file. */
ch_dataset *ch__dataset_cache_file(ch_dataset *d, const char *path);
/* Like ch_dataset_shard. If `why` is not "", reading fails when there are elements, but fewer
 * than shards; `why` names the elements in that error, for example "files". */
ch_dataset *ch__dataset_shard(ch_dataset *d, int64_t n, int64_t index, const char *why);
/* Returns true if `d` is a shard stage with two or more shards. */
bool ch__dataset_is_shard(const ch_dataset *d);
/* Like ch_dataset_shard, but `block` consecutive elements belong to the same shard. */
ch_dataset *ch__dataset_shard_blocks(ch_dataset *d, int64_t n, int64_t index, int64_t block);

/* Creates part `index` of n disjoint parts of `d`. Each example is in exactly one part, in
 * elements as large as those of `d`. The division is made as close to the sources as possible,
 * so that few stages run for more than one part. A reader of one part must read all parts in
 * the same pass. (data/parts.c) */
ch_status ch__dataset_part(ch_dataset *d, int n, int index, ch_dataset **out);

/* Returns a dataset that takes an element of each of n inputs in turn. An input that has ended
 * gives elements without rows until all inputs have ended. Takes ownership of the inputs.
 * (data/turns.c) */
ch_dataset *ch__dataset_in_turn(int n, ch_dataset *const *d);

/* ---- running ---- */

/* Counters of a cursor. Times are CPU times of the calling thread in nanoseconds, so they do
 * not include waiting or other work of the machine. */
typedef struct ch_counts {
    _Atomic int64_t n_elements;
    /* Time of all calls of `next`, including the calls of inputs and excluding work for
     * workqueues. An estimate, because only a sample of the calls is timed. */
    _Atomic int64_t ns;
    int64_t         mean_ns;  /* moving average of the timed calls */
    int             sparsity; /* one call in `sparsity` is timed; a power of two */
    /* Work and waiting time of the workqueues in the bodies that this stage runs. Guarded by
     * the iterator's lock. */
    int64_t body_ns, body_wait_ns;
} ch_counts;

/* Numbers of records that a tree of cursors skipped: all, and those of cursors now closed. */
typedef struct ch_skips {
    _Atomic int64_t n, gone;
} ch_skips;

/* Names the stream of random numbers that an iterator draws (data/random.h). An iterator of the
 * program has (0, 0). An iterator of a per-worker dataset has (index of the worker's stream,
 * number of the pass). So different streams draw different numbers, and another worker that
 * continues a stream draws the same numbers again. */
typedef struct ch_stream_name {
    int64_t reader; /* 0 or more */
    int64_t pass;   /* 0 or more */
} ch_stream_name;

struct ch_cursor {
    const ch_stage *stage;
    ch_dataset     *dataset; /* a stage of the iterator's dataset; not referenced */
    ch_iterator    *it;
    ch_cursor      *parent; /* NULL: the root */
    int             n_in;   /* open inputs */
    ch_cursor     **in;
    /* Hash of the path from the root. A cursor that replaces another has the same path; all
     * other cursors differ. */
    uint64_t path;
    int64_t  epoch; /* first_epoch plus the number of rewinds */
    /* 0 outside of bodies. Each body has a random first epoch, so that bodies draw different
     * random numbers. */
    int64_t  first_epoch;
    int64_t  reader;     /* 0 below a shard, where all workers must see the same elements */
    uint64_t pass_key;   /* key of (reader, pass) for random numbers (data/random.h) */
    uint64_t reader_key; /* key of (reader, 0), for stages that draw alike in every pass */
    /* Prefetches for this cursor (data/workqueue.h); or NULL. The iterator's lock guards it
     * against jobs of the inputs, which may run while the cursor is opened and closed. */
    struct ch_workqueue *workqueue;
    int64_t              kept; /* bytes of elements charged to this cursor (data/budget.h) */
    ch_counts            counts;
    ch_skips            *skips;     /* counters of the whole tree */
    _Atomic int64_t      n_skipped; /* records that this cursor skipped; part of its position */
};

#define CH_ATTRS(c, type) CH_ATTRS_OF((c)->dataset, type)

/* Opens the inputs of `d` and then its own cursor. */
ch_status ch__cursor_open(ch_iterator *it, ch_dataset *d, ch_cursor *parent, ch_cursor **out);
/* Closes the cursor and its inputs. NULL is allowed. */
void ch__cursor_close(ch_cursor *c);
/* Counts `n` records that the cursor skipped. */
void ch__cursor_skipped(ch_cursor *c, int64_t n);
/* Replaces the only input of `c` by a newly opened cursor, which begins at its first
 * element. */
ch_status ch__cursor_reopen(ch_cursor *c);
/* Returns the next element in *out, or NULL at the end. The caller owns the element. */
ch_status ch__cursor_next(ch_cursor *c, ch_element **out);
/* Marks the last error of this thread as an error between elements, and returns rc.
 *
 * An ordinary error of ch__cursor_next stands for one element, so that the elements behind it
 * keep their numbers. A stage that collects rows calls ch__error_between before it returns an
 * error of its input: no element of its own is missing then, because later rows fill the batch,
 * or the error stands for a whole group of pieces. */
ch_status ch__error_between(ch_status rc);
/* Returns true if the last error of this thread was marked by ch__error_between. */
bool      ch__error_is_between(void);
ch_status ch__cursor_rewind(ch_cursor *c);
void      ch__cursor_save(ch_cursor *c, ch_saver *s);
/* Saves the position at the place `to`; any but the present needs can_step_back. */
void      ch__cursor_save_back(ch_cursor *c, ch_saver *s, ch_back to);
ch_status ch__cursor_load(ch_cursor *c, ch_loader *l);

/* Default operations of stages without state of their own. */
ch_status ch__rewind_inputs(ch_cursor *c);
void      ch__save_inputs(ch_cursor *c, ch_saver *s);
ch_status ch__load_inputs(ch_cursor *c, ch_loader *l);
/* Returns true if there is a single input, and it can step back (ch_stage.can_step_back). */
bool ch__input_can_step_back(ch_cursor *c, ch_back to);
/* Saves the inputs. Any place but the present needs ch__input_can_step_back. */
void ch__save_input_back(ch_cursor *c, ch_saver *s, ch_back to);
/* The `save` of stages without state whose element k is made of element k of the input. */
void      ch__save_passing(ch_cursor *c, ch_saver *s);
ch_status ch__open_nothing(ch_cursor *c);
void      ch__close_nothing(ch_cursor *c);

/* Opens a cursor over the body of the stage `of`, with `n` elements as the input of the body.
 * `number` is the index of this body in the pass; the random numbers of the body depend on it.
 * Takes ownership of the elements, even on error. With _prefetch, the body has a workqueue, so
 * threads run it in advance. */
ch_status ch__body_open(ch_cursor *of, int64_t number, int n, ch_element *const *given,
                        ch_cursor **out);
ch_status ch__body_open_prefetch(ch_cursor *of, int64_t number, int n, ch_element *const *given,
                                 ch_cursor **out);
/* Returns the stage that runs the outermost body around `c`; NULL: `c` is in no body. */
ch_cursor *ch__cursor_runner(ch_cursor *c);
/* Opens a body at a position that ch__cursor_save wrote. */
ch_status ch__body_load(ch_cursor *of, ch_loader *l, ch_cursor **out);
ch_status ch__body_load_prefetch(ch_cursor *of, ch_loader *l, ch_cursor **out);

/* ---- positions ---- */

/* A position consists of integers, elements and texts for each stage. Within each of the three
 * kinds, a stage must load the values in the order in which it saved them. */
void ch__save_int(ch_saver *s, int64_t value);
/* Returns the place whose position the stage must save. Must be called before the inputs are
 * saved. */
ch_back ch__save_place(const ch_saver *s);
void    ch__save_element(ch_saver *s, const ch_element *e);
/* Saves the number of elements, then each element. */
void ch__save_elements(ch_saver *s, const ch_elements *list);
/* Saves an error in place of an element. `is_between` as in ch_job_result. */
void ch__save_fault(ch_saver *s, ch_status rc, const char *text, bool is_between);
void ch__save_text(ch_saver *s, const void *data, size_t size);
/* Saves references (data/row_ref.h), from index `from` on. The number is not saved. */
struct ch_row_refs;
void ch__save_refs(ch_saver *s, const struct ch_row_refs *r, int64_t from);
/* Records an error in the saver. The first error is kept. */
void ch__save_fail(ch_saver *s, ch_status rc);

/* Begins the values of a stage. All calls after it belong to this stage. */
void ch__save_begin(ch_saver *s, const char *stage);
void ch__load_begin(ch_loader *l, const char *stage);

/* If a value is missing or invalid, the loader fails, and these calls return 0 or NULL from
 * then on. */
int64_t     ch__load_int(ch_loader *l, int64_t least, int64_t most);
int64_t     ch__load_count(ch_loader *l); /* 0 to INT64_MAX / 2, so that counting on is safe */
ch_element *ch__load_element(ch_loader *l, const ch_dataset *like);
/* Appends the elements that ch__save_elements saved to a list. More than `most` are an
 * error. */
ch_status ch__load_elements(ch_loader *l, int64_t most, const ch_dataset *like,
                            ch_elements *list);
/* Returns the saved element. If an error was saved instead, returns NULL with the code in *rc,
 * and restores the message and the mark of ch__error_between as the last error of this
 * thread. */
ch_element *ch__load_result(ch_loader *l, const ch_dataset *like, ch_status *rc);
ch_str      ch__load_text(ch_loader *l);
/* Appends n references to elements of `like`, which is not NULL. */
ch_status ch__load_refs(ch_loader *l, int64_t n, const ch_dataset *like,
                        struct ch_row_refs *out);
/* Returns true if the position was written before references were: stages then have no lists of
 * them. */
bool ch__load_is_old(const ch_loader *l);
/* Returns true if the position was written since stages step back into earlier passes. */
bool ch__load_has_passes(const ch_loader *l);
bool ch__load_fails(const ch_loader *l);
/* Returns CH_OK, or CH_INVALID_ARGUMENT with a message that names the stage. */
ch_status ch__load_status(ch_loader *l);

#endif
