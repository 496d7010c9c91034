/* data/job.c -- jobs of a workqueue: elements and errors that a stage pulls and makes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/job.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

void ch__data_job_clear(ch_data_job *job)
{
    for (int k = job->n_delivered; k < job->n; k++)
        ch__job_result_drop(&job->result[k]);
    job->n = job->n_delivered = 0;
}

void ch__data_job_free(ch_data_job *job)
{
    if (job == NULL)
        return;
    ch__data_job_clear(job);
    ch__free(job->result);
    ch__free(job->note);
    ch__free(job);
}

void ch__job_result_drop(ch_job_result *s)
{
    ch__element_free(s->element);
    ch__free(s->text);
    *s = (ch_job_result){0};
}

void ch__job_result_fail(ch_job_result *s, ch_status rc)
{
    ch__job_result_drop(s);
    s->rc = rc;
    s->is_between = ch__error_is_between();
    s->text = ch__strdup(ch_error_message());
}

/* Appends an empty result to the job. If memory is exhausted, sets has_lost and returns NULL.
 * From then on the job accepts no results, so that the error follows directly on the results
 * before it. */
static ch_job_result *job_add_result(ch_data_job *job)
{
    if (job->has_lost ||
        !ch__grow((void **)&job->result, &job->capacity, job->n + 1, sizeof(*job->result))) {
        job->has_lost = true;
        return NULL;
    }
    job->result[job->n] = (ch_job_result){0};
    return &job->result[job->n++];
}

void ch__data_job_add(ch_data_job *job, ch_element *e)
{
    ch_job_result *s = job_add_result(job);

    if (s != NULL)
        s->element = e;
    else
        ch__element_free(e);
}

void ch__data_job_add_error(ch_data_job *job, ch_status rc)
{
    ch_job_result *s = job_add_result(job);

    if (s != NULL)
        ch__job_result_fail(s, rc);
}

void ch__data_job_note(ch_data_job *job, const char *text)
{
    if (job->note != NULL && strcmp(job->note, text) == 0)
        return;
    ch__free(job->note);
    job->note = ch__strdup(text);
}

void ch__data_job_close_gaps(ch_data_job *job)
{
    int n = 0;

    for (int k = 0; k < job->n; k++)
        if (job->result[k].element != NULL || job->result[k].rc != CH_OK)
            job->result[n++] = job->result[k];
    job->n = n;
}

void ch__data_job_save(const ch_data_job *job, ch_saver *s)
{
    for (int k = job->n_delivered; k < job->n; k++)
        if (job->result[k].rc == CH_OK)
            ch__save_element(s, job->result[k].element);
        else
            ch__save_fault(s, job->result[k].rc, job->result[k].text,
                           job->result[k].is_between);
    if (job->has_lost)
        ch__save_fault(s, CH_RESOURCE_EXHAUSTED, "out of memory", false);
}
