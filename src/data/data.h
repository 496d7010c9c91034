/* data/data.h -- the inside of datasets and iterators: stages.
 *
 * A dataset is a tree of stages. What a stage is stands in one place, a ch_stage: its
 * attributes (a protobuf message: what is held in memory is what is sent), what its elements
 * look like, and how it runs. A running stage is a cursor; cursors form the same tree, and each
 * pulls elements from those below it.
 *
 * Invariants:
 *   1. A cursor is used by one thread at a time. Stages that work with several threads do it
 *      with a belt (data/workqueue.h), which keeps this promise for what is below.
 *   2. `next` gives an element, NULL at the end, or an error. After an error the next call goes on
 *      behind it; after the end it gives the end again.
 *   3. The elements of a cursor are a function of its dataset, of the stream that the iterator reads
 *      (ch_stream_name) and of how often the cursor was rewound: never of time, of threads or of
 *      addresses (but for stages that are asked to be unordered).
 *   4. What `save` writes is all that a fresh cursor needs to go on with the very next element.
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

/* What others want to know of a stage: a distribution over workers (data/distribute.c), and who counts
 * bytes (data/budget.h). */
enum {
    CH_READS_FILES = 1,   /* its input gives their names */
    CH_KEEPS_BATCHES = 2, /* of the inputs' batches each stays whole */
    CH_KEEPS_NAMES = 4,   /* gives all that it is given, in whatever order and however often */
    /* The union over workers is what one would read: elements are treated one by one, or as a heap. */
    CH_DIVIDES = 8,
    CH_DIVIDES_IF_ASKED = 16,  /* each worker does it to its own part, which is not the same */
    CH_HOLDS_ELEMENTS = 32,    /* beyond those that work ahead */
    CH_GIVES_UP_ELEMENTS = 64, /* what it gives it holds no more, and after a rewind nothing */
    CH_ONE_BY_ONE = 128 /* its k-th element is made of the k-th that it is given, alone */
};

typedef struct ch_stage {
    const char                       *name; /* on the wire too */
    int                               version;
    unsigned                          traits; /* CH_READS_FILES | ... */
    int                               n_in;   /* -1: any number, at least one */
    const ProtobufCMessageDescriptor *attrs;  /* NULL: it has none */
    size_t                            cursor_bytes;
    /* Checks the attributes, which may come from a stranger, and says what elements look like:
     * d->spec (ch__dataset_set_parts and the like), d->same_rows, d->cardinality. */
    ch_status (*infer)(ch_dataset *d);
    /* Its elements may come in any order, as it is told. NULL: never. */
    bool (*is_unordered)(const ch_dataset *d);
    bool
        opens_inputs; /* itself, when it needs them: nothing works ahead for what is not asked */
    /* At the first element. The inputs are open. */
    ch_status (*open)(ch_cursor *c);
    ch_status (*next)(ch_cursor *c, ch_element **out);
    /* Back to the first element, c->epoch being one more; inputs are the stage's to rewind. */
    ch_status (*rewind)(ch_cursor *c);
    /* Errors stay with the saver. */
    void (*save)(ch_cursor *c, ch_saver *s);
    /* Into a cursor just opened. Nothing that comes from the loader is trusted. */
    ch_status (*load)(ch_cursor *c, ch_loader *l);
    /* Also after an open that failed. The belt is closed already. */
    void (*close)(ch_cursor *c);
} ch_stage;

/* ---- descriptions ---- */

/* Held while a function runs that is called by one thread at a time: by all iterators over a stage, and
 * over copies of it, and by all bodies that have it. */
typedef struct ch_call_lock {
    atomic_int      refs;
    pthread_mutex_t lock;
    /* Who has the one state of a generator without `make`: cursors of one place in one iterator. */
    struct ch_iterator *user;
    uint64_t            path;
    int                 n_users; /* two while one takes the other's place */
} ch_call_lock;

/* A C function of the program's: cannot be encoded. */
typedef struct ch_data_call {
    ch_map_fn    map;
    ch_filter_fn filter;
    ch_generator generator;
    ch_status (*make)(void *arg, void **out);
    void (*drop)(void *state);
    void         *arg;
    ch_call_lock *turn; /* NULL: of the stage that is made with it */
} ch_data_call;

/* Stages may be shared, so that few of them describe very many: what runs is a tree, and its size is
 * bounded, so that who walks over one, from anywhere, comes to an end. */
enum { CH_MAX_PARTS = 256, CH_MAX_DATASET_DEPTH = 256, CH_MAX_DATASET_STAGES = 1 << 14 };

struct ch_dataset {
    atomic_int        refs;
    const ch_stage   *stage;
    ProtobufCMessage *attrs; /* owned */
    int               n_in;
    ch_dataset      **in;   /* referenced */
    ch_dataset       *body; /* what is done with each element: flat_map, interleave, window */
    ch_dataset       *element; /* the stage `element` that the body takes it from; referenced */
    ch_graph         *graph;
    ch_tuple         *data; /* tensors of sources in memory */
    ch_data_call      call;
    int               depth, n_stages; /* of the tree */
    bool              shares_state;    /* it has a generator whose state all its cursors use */
    bool              skips_bad;    /* a reader of records in it leaves out what is damaged */
    uint64_t          hash;         /* of what it describes, data in memory aside */
    _Atomic uint64_t  fingerprint;  /* 0: not asked for yet */
    atomic_bool       has_warned;   /* that every worker reads all of it (data/distribute.c) */
    bool              is_unordered; /* a stage in it may give its elements in any order */
    ch_dataset       *next_free;    /* while it is let go of */

    /* What infer says. */
    int             n_parts;
    ch_tensor_spec *spec;
    char          **name;      /* that spec points at */
    bool            same_rows; /* parts whose first size is -1, ragged ones aside, have equally
                                * many rows */
    int64_t         cardinality;

    ch_dataset_options options; /* what options in it say, the outermost first */
};

/* The attributes as what they are. */
#define CH_ATTRS_OF(d, type) ((const type *)(const void *)(d)->attrs)

/* What a stage is made of; all but the stage may be left out. */
typedef struct ch_dataset_make {
    ch_status               rc;    /* of making the attributes: if not OK nothing is made */
    const ProtobufCMessage *attrs; /* copied */
    int                     n_in;
    ch_dataset *const  *in; /* taken over, on an error too; NULL entries: an error was said */
    ch_dataset         *body, *element; /* taken over */
    ch_graph           *graph;          /* taken over */
    ch_tuple           *data;           /* taken over */
    const ch_data_call *call;
} ch_dataset_make;

/* NULL on an error, which ch_error_message tells. */
ch_dataset *ch__dataset_new(const ch_stage *stage, const ch_dataset_make *m);
/* Whether this thread's last fault was that one could not be made. */
bool ch__dataset_was_not_made(void);

/* The infer of stages that give what their first input gives. */
ch_status ch__infer_like_input(ch_dataset *d);
/* For infer: n parts, all zero. */
ch_status ch__dataset_parts(ch_dataset *d, int n);
/* Part i is a copy of `spec`; the name too. */
ch_status ch__dataset_set_part(ch_dataset *d, int i, const ch_tensor_spec *spec);
/* Just these parts. */
ch_status ch__dataset_set_parts(ch_dataset *d, int n, const ch_tensor_spec *spec);
/* The parts of `from`, its rows and its number. */
ch_status ch__dataset_like(ch_dataset *d, const ch_dataset *from);
/* Tells datasets apart by what they describe, data in memory too; not by what C functions do. */
uint64_t ch__dataset_fingerprint(ch_dataset *d);
/* Elements may also be as those of `other`: sizes that differ are not known. */
ch_status ch__dataset_widen(ch_dataset *d, const ch_dataset *other);
/* A spec as a message whose memory is of the arena; and parts as one says. */
ch_status ch__spec_encode(ch_arena *a, int n, const ch_tensor_spec *spec,
                          Cohort__ElementSpec **out);
ch_status ch__dataset_warn_once(ch_dataset *d, const Cohort__ElementSpec *spec);
/* INVALID_ARGUMENT, "batch: ..." */
ch_status ch__dataset_fail(const ch_dataset *d, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* INVALID_ARGUMENT where an element is not what the dataset's are. */
ch_status ch__dataset_check(const ch_dataset *d, const ch_element *e);

/* The stages there are, ended by NULL: the only list (data/stages.c). */
const ch_stage *const *ch__stages(void);

/* Stages that others ask for. */
extern const ch_stage ch__stage_element, ch__stage_options;
/* What the stage itself says; zero if it is another. */
ch_dataset_options ch__stage_options_of(const ch_dataset *d);
/* ch_dataset_cache in a file. */
ch_dataset *ch__dataset_cache_file(ch_dataset *d, const char *path);
/* ch_dataset_shard by a distribution: `why` ("files") is what there must be enough of. */
ch_dataset *ch__dataset_shard(ch_dataset *d, int64_t n, int64_t index, const char *why);
/* Whether it is a shard that leaves elements to others. */
bool ch__dataset_is_shard(const ch_dataset *d);
/* ch_dataset_shard of blocks: so many elements in a row are in the same. */
ch_dataset *ch__dataset_shard_blocks(ch_dataset *d, int64_t n, int64_t index, int64_t block);

/* Part `index` of n, which together are the dataset: each example once, in elements as large as the dataset's. As little as can be of what
 * is behind the sources is computed for more than one part. Whoever reads one part must read all in the same pass.
 * (data/distribute.c) */
ch_status ch__dataset_part(ch_dataset *d, int n, int index, ch_dataset **out);

/* An element of each in turn; of one that has ended, as long as another has not, elements of no rows.
 * Takes the inputs over. (data/turns.c) */
ch_dataset *ch__dataset_in_turn(int n, ch_dataset *const *d);

/* ---- running ---- */

/* Times are the processor's, so that waiting, and the machine's other work, are not in them. */
typedef struct ch_counts {
    _Atomic int64_t n_elements;
    /* Of calls of next, with what they called, without work for belts: about, since few are timed. */
    _Atomic int64_t ns;
    int64_t         mean_ns;  /* of the calls that were timed, the last ones above all */
    int             sparsity; /* one call in so many is timed; a power of two */
    /* Of the belts in bodies that this stage runs, and how long it waited for them; guarded by the
     * iterator's lock. */
    int64_t body_ns, body_wait_ns;
} ch_counts;

/* Records that were left out in a tree of cursors: in all, and by cursors that are closed. */
typedef struct ch_skips {
    _Atomic int64_t n, gone;
} ch_skips;

/* Names the random numbers that an iterator draws (data/random.h). An iterator of the program has
 * (0, 0). Iterators of a per-worker dataset have (index of the worker's stream, number of the pass), so
 * that no two of them draw alike, and a stream that another worker takes over draws the same again. */
typedef struct ch_stream_name {
    int64_t reader; /* 0 or more */
    int64_t pass;   /* 0 or more */
} ch_stream_name;

struct ch_cursor {
    const ch_stage *stage;
    ch_dataset     *dataset; /* of the iterator's tree; not referenced */
    ch_iterator    *it;
    ch_cursor      *parent;
    int             n_in;
    ch_cursor     **in;
    uint64_t path;  /* from the root: equal for one that takes another's place, and else not */
    int64_t  epoch; /* first_epoch, and how often it was rewound */
    int64_t  first_epoch; /* 0; in a body a number of its own, so that each draws others */
    int64_t  reader;      /* 0 below a shard: all workers must see the same elements there */
    uint64_t pass_key;    /* of (reader, pass), for random numbers (data/random.h) */
    uint64_t reader_key;  /* of (reader, 0): for stages that draw the same in every pass */
    struct ch_workqueue
                   *workqueue; /* works ahead for it (data/workqueue.h); NULL: nothing does */
    int64_t         kept; /* bytes of elements, as far as they are counted (data/budget.h) */
    ch_counts       counts;
    ch_skips       *skips;     /* of its tree */
    _Atomic int64_t n_skipped; /* of which by itself: part of its place */
};

#define CH_ATTRS(c, type) CH_ATTRS_OF((c)->dataset, type)

/* Opens the cursor and, before it, its inputs. */
ch_status ch__cursor_open(ch_iterator *it, ch_dataset *d, ch_cursor *parent, ch_cursor **out);
void      ch__cursor_close(ch_cursor *c); /* its inputs too; NULL is fine */
/* `n` records were left out. */
void ch__cursor_skipped(ch_cursor *c, int64_t n);
/* What is below `c` anew, at its first element. */
ch_status ch__cursor_reopen(ch_cursor *c);
ch_status ch__cursor_next(ch_cursor *c, ch_element **out);
/* An error of ch__cursor_next takes the place of one element, so that the elements behind it keep
 * their numbers. A stage that collects rows calls ch__error_between before it passes on an error
 * of its input: none of its own elements is missing then, because later rows fill the batch, or
 * the error stands for a whole group of pieces. Returns rc. */
ch_status ch__error_between(ch_status rc);
/* Returns true if that was said of the last error of this thread. */
bool      ch__error_is_between(void);
ch_status ch__cursor_rewind(ch_cursor *c);
void      ch__cursor_save(ch_cursor *c, ch_saver *s);
ch_status ch__cursor_load(ch_cursor *c, ch_loader *l);

/* For stages that have nothing to say of their own. */
ch_status ch__rewind_inputs(ch_cursor *c);
void      ch__save_inputs(ch_cursor *c, ch_saver *s);
ch_status ch__load_inputs(ch_cursor *c, ch_loader *l);
ch_status ch__open_nothing(ch_cursor *c);
void      ch__close_nothing(ch_cursor *c);

/* A body at work: the body of `of`, with `n` elements as what it is given. `number` says which of the
 * bodies of this pass it is: what is random in it depends on that. Takes the elements over, on an
 * error too. The result is a cursor like any other. `ahead`: threads run it beforehand. */
ch_status ch__body_open(ch_cursor *of, int64_t number, int n, ch_element *const *given,
                        ch_cursor **out);
ch_status ch__body_open_prefetch(ch_cursor *of, int64_t number, int n, ch_element *const *given,
                                 ch_cursor **out);
/* The stage that runs the body which a cursor is part of, the outermost; NULL: it is in none. */
ch_cursor *ch__cursor_runner(ch_cursor *c);
/* One that was saved with ch__cursor_save. */
ch_status ch__body_load(ch_cursor *of, ch_loader *l, ch_cursor **out);
ch_status ch__body_load_prefetch(ch_cursor *of, ch_loader *l, ch_cursor **out);

/* ---- places ---- */

/* Numbers, elements and texts go in and come out in the same order, each kind by itself. */
void ch__save_int(ch_saver *s, int64_t value);
void ch__save_element(ch_saver *s, const ch_element *e);
void ch__save_elements(ch_saver *s, const ch_elements *list); /* how many, then each */
/* Saves an error; `is_between` as in ch_job_result. */
void ch__save_fault(ch_saver *s, ch_status rc, const char *text, bool is_between);
void ch__save_text(ch_saver *s, const void *data, size_t size);
void ch__save_fail(ch_saver *s, ch_status rc);

/* What follows is of this stage. */
void ch__save_begin(ch_saver *s, const char *stage);
void ch__load_begin(ch_loader *l, const char *stage);

/* What is not there, or not as it should be, makes the loader fail: these give 0 and NULL then. */
int64_t     ch__load_int(ch_loader *l, int64_t least, int64_t most);
int64_t     ch__load_count(ch_loader *l); /* from 0 to where there is room to count on */
ch_element *ch__load_element(ch_loader *l, const ch_dataset *like);
/* What ch__save_elements saved, at most `most`, added to a list. */
ch_status ch__load_elements(ch_loader *l, int64_t most, const ch_dataset *like,
                            ch_elements *list);
/* Returns an element. If an error was saved instead, returns NULL, and fails as ch__cursor_next
 * failed then: the code in *rc, the message and its place as the errors of this thread. */
ch_element *ch__load_result(ch_loader *l, const ch_dataset *like, ch_status *rc);
ch_str      ch__load_text(ch_loader *l);
bool        ch__load_fails(const ch_loader *l);
ch_status   ch__load_status(ch_loader *l); /* INVALID_ARGUMENT, the stage named */

#endif
