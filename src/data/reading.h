/* data/reading.h -- common code of the stages that read files, one file after the other.
 *
 * A stage that reads files begins its cursor with a ch_reading. It opens its workqueue with
 * ch__reading_open; its `pull` reads records with ch__reading_pull.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_READING_H
#define DATA_READING_H

#include "data/workqueue.h"
#include "file/reader.h"

/* The cursor of a stage that reads files. The elements of its input are file names. */
typedef struct ch_reading {
    ch_cursor      base;
    ch_block_pool *pool;  /* blocks that the files are read into; referenced */
    ch_element    *names; /* current input element: a string or several; owned; NULL: none */
    /* Index in `names` of the open file or, if none is open, of the next file. */
    int64_t    name;
    ch_reader *reader; /* of the open file; owned; NULL: no file is open */
    int64_t    n;      /* elements read from the open file; for text formats, lines */
    /* Called after a file was opened: reads the header of the file. NULL: not needed. */
    ch_status (*begin)(struct ch_reading *r);
    /* Called before a file is closed: frees the data that `begin` created. NULL: not needed. */
    void (*leave)(struct ch_reading *r);
    /* Skips the record at the reader's position, or the rest of it, in constant memory. May
     * skip only a part of a very large record; it then sets `skipping`. NULL: the stage cannot
     * skip. */
    ch_status (*skip)(struct ch_reading *r);
    int skipping; /* state of a record skipped in part, defined by `skip`; 0: none is */
    /* The stage itself seeks to element `n` on a restore; else the reader seeks a byte
     * offset. */
    bool seeks_rows;
} ch_reading;

/* Returns true if the elements of `d` can be file names: string scalars or vectors. */
bool ch__gives_names(const ch_dataset *d);
/* Checks, for infer, that the input of `d` gives file names and that the options are valid.
 * `read` may be NULL. */
ch_status ch__reading_infer(const ch_dataset *d, const Cohort__Read *read);

/* Opens the next file if none is open. r->reader stays NULL if there are no more files. If a
 * file cannot be opened, returns its error; the next call opens the file after it. */
ch_status ch__reading_file(ch_reading *r, const Cohort__Read *read);
/* Closes the open file and advances to the next name. */
void ch__reading_close_file(ch_reading *r);
/* Handles the error `rc` of a record. If skip_bad is set and the record is damaged or above a
 * size limit, counts the record as skipped and returns true. Otherwise adds the error to the
 * job and returns false: always if memory is exhausted, and if the input that gives the names
 * failed. */
bool ch__reading_leave_out(ch_reading *r, const Cohort__Read *read, ch_data_job *job,
                           ch_status rc);
/* Handles the error `rc`, after which the rest of the file cannot be read. Like
 * ch__reading_leave_out; if the error is skipped, logs a warning. The caller must close the
 * file. */
void ch__reading_damage(ch_reading *r, const Cohort__Read *read, ch_data_job *job,
                        ch_status rc);

enum {
    /* Bytes that `skip` skips in a call. Bounded, so that the error of a very long line is
     * returned before the end of the line is found. */
    CH_SKIP_BYTES = 16 << 20,
    CH_MAX_SKIPPING = 4 /* largest value of `skipping` */
};
/* Returns true if `rc` is the last error of this thread and says that a record or a file is
 * above a size limit. */
bool ch__reading_is_large(ch_status rc);
/* Skips the record at the reader's position, which is above a size limit. The last error of
 * this thread must say so; it is added to the job or, with skip_bad, counted. A very large
 * record is skipped in part; later pulls skip the rest. Returns false if the rest of the file
 * cannot be read. */
bool ch__reading_skip_large(ch_reading *r, const Cohort__Read *read, ch_data_job *job);

/* Checks like ch__reading_infer and sets the spec to a string scalar, for stages whose elements
 * are unparsed records. */
ch_status ch__reading_infer_strings(ch_dataset *d, const Cohort__Read *read);
/* Reads a record of the open file and adds it, or its error, to the job. Returns false if the
 * file has no more records. */
typedef bool (*ch_pull_record)(ch_reading *r, const Cohort__Read *read, ch_data_job *job);
/* Implements ch_workqueue_ops.pull: reads up to job->want records. All records of a job are
 * from one file, and the path of the file is the note of the job, for error messages. */
void ch__reading_pull(ch_cursor *c, const Cohort__Read *read, ch_data_job *job,
                      ch_pull_record pull);

/* Implement the functions of the stage. ch__reading_open opens the workqueue; the stage must
 * set `begin`, `leave`, `skip` and `seeks_rows` before. */
ch_status ch__reading_open(ch_reading *r, const ch_workqueue_ops *ops);
ch_status ch__reading_rewind(ch_cursor *c);
void      ch__reading_save(ch_cursor *c, ch_saver *s);
ch_status ch__reading_load(ch_cursor *c, ch_loader *l);
void      ch__reading_close(ch_cursor *c);

/* Returns the largest size of a record in bytes. `read` may be NULL. */
int64_t ch__read_max_bytes(const Cohort__Read *read);
/* Sets the message to the options. `opt` may be NULL. */
void ch__read_message(Cohort__Read *m, const ch_read_options *opt);

#endif
