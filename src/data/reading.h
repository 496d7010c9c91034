/* data/reading.h -- what stages that read files share: one file after the other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_READING_H
#define DATA_READING_H

#include "data/workqueue.h"
#include "file/reader.h"

/* A stage that reads files: its input gives their names. */
typedef struct ch_reading {
    ch_cursor      base;
    ch_block_pool *pool;
    ch_element    *names;  /* of files: one string, or several; NULL: none at hand */
    int64_t        name;   /* which of them is open, or comes next */
    ch_reader     *reader; /* NULL: no file is open */
    int64_t        n;      /* elements taken from the file that is open, or lines */
    /* After a file was opened: reads what stands before its elements. NULL: nothing does. */
    ch_status (*begin)(struct ch_reading *r);
    /* Before a file is closed: lets go of what `begin` made. NULL: there is nothing. */
    void (*leave)(struct ch_reading *r);
    /* Passes over the record in front of the reader, or the rest of one, without holding it. Of one that
     * is very large it passes over a part, and leaves a state in `passing`. Readers of records have it. */
    ch_status (*pass)(struct ch_reading *r);
    int  passing;    /* how far that is; 0: the reader is in front of a record */
    bool seeks_rows; /* a place in a file is `n`, for the stage to go to, not a byte */
} ch_reading;

/* Its elements are a string scalar or vector. */
bool ch__gives_names(const ch_dataset *d);
/* Such for its only input, and options that can be. */
ch_status ch__reading_infer(const ch_dataset *d, const Cohort__Read *read);

/* Opens the next file if none is open; r->reader stays NULL where there are no more. An error is
 * that file's: the next call opens the one behind it. */
ch_status ch__reading_file(ch_reading *r, const Cohort__Read *read);
/* Done with the file. */
void ch__reading_close_file(ch_reading *r);
/* The record is damaged: left out and counted, where that was asked for; false: it is an error in the
 * item. One that is larger than it may be is damage too; that there is no memory for it is not, nor
 * what the names' stage failed with. */
bool ch__reading_leave_out(ch_reading *r, const Cohort__Read *read, ch_data_job *i,
                           ch_status rc);
/* Nothing behind it can be read: an error in the item, or the rest of the file left out and counted,
 * where that was asked for. */
void ch__reading_damage(ch_reading *r, const Cohort__Read *read, ch_data_job *i, ch_status rc);

enum {
    CH_PASS_BYTES =
        16 << 20,       /* passed over at once: an error does not wait for the end of a line */
    CH_MOST_PASSING = 4 /* the states that `passing` can have */
};
/* Whether what failed is a record that is larger than it may be, or a file that is. */
bool ch__reading_is_large(ch_status rc);
/* The record in front of the reader is: it alone is an error, or left out and counted. False: nothing
 * behind it can be read. What is not passed over then is by later pulls. */
bool ch__reading_pass(ch_reading *r, const Cohort__Read *read, ch_data_job *i);

/* The infer of stages that give what they read as string scalars. */
ch_status ch__reading_infer_strings(ch_dataset *d, const Cohort__Read *read);
/* Puts a record of the open file into the item; false: the file has no more. */
typedef bool (*ch_pull_record)(ch_reading *r, const Cohort__Read *read, ch_data_job *i);
/* A pull: records of one file, so that an item has one name for what is wrong in it. */
void ch__reading_pull(ch_cursor *c, const Cohort__Read *read, ch_data_job *i,
                      ch_pull_record pull);

ch_status ch__reading_open(ch_reading *r, const ch_workqueue_ops *ops);
ch_status ch__reading_rewind(ch_cursor *c);
void      ch__reading_save(ch_cursor *c, ch_saver *s);
ch_status ch__reading_load(ch_cursor *c, ch_loader *l);
void      ch__reading_close(ch_cursor *c);

int64_t ch__read_max_bytes(const Cohort__Read *read);
void    ch__read_message(Cohort__Read *m, const ch_read_options *opt);

#endif
