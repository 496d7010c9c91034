/* test/fit/test_tensorboard.c -- event files of TensorBoard, read by a reader that shares no
 * code with the writer.
 *
 * The reader computes checksums bit by bit and decodes messages field by field. The tests
 * compare messages, histograms and whole files.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "training_help.h"

#include <dirent.h>

#include "../file/folder.h"
#include "base/sys.h"
#include "cohort/function.h"
#include "file/record.h"
#include "fit/report/events.h"

/* ---- a reader ---- */

static uint32_t slow_crc(const unsigned char *x, size_t n)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < n; i++) {
        crc ^= x[i];
        for (int k = 0; k < 8; k++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint64_t slow_le(const unsigned char *x, int n)
{
    uint64_t v = 0;

    while (n-- > 0)
        v = v << 8 | x[n];
    return v;
}

typedef struct part {
    const unsigned char *at, *end;
} part;

typedef struct field {
    int      number, type;
    uint64_t value; /* of varints and fixed-size fields */
    part     data;
} field;

static uint64_t take_varint(part *p)
{
    uint64_t x = 0;

    for (int shift = 0;; shift += 7) {
        assert_true(p->at < p->end && shift < 70);
        x |= (uint64_t)(*p->at & 0x7f) << shift;
        if (*p->at++ < 0x80)
            return x;
    }
}

static bool take_field(part *p, field *f)
{
    uint64_t key, n;

    if (p->at == p->end)
        return false;
    key = take_varint(p);
    *f = (field){.number = (int)(key >> 3), .type = (int)(key & 7)};
    switch (f->type) {
    case 0:
        f->value = take_varint(p);
        return true;
    case 1:
    case 5:
        n = f->type == 1 ? 8 : 4;
        assert_true(n <= (uint64_t)(p->end - p->at));
        f->value = slow_le(p->at, (int)n);
        break;
    default:
        assert_int_equal(f->type, 2);
        n = take_varint(p);
        assert_true(n <= (uint64_t)(p->end - p->at));
        f->data = (part){p->at, p->at + n};
    }
    p->at += n;
    return true;
}

typedef struct event {
    double  wall_time;
    int64_t step;
    char    version[32], tag[128], plugin[32];
    int class, dtype, n_dims, n_strings;
    bool                 has_simple, has_shape;
    float                simple;
    int64_t              dim[4];
    const unsigned char *content;
    size_t               n_content;
    char                *text; /* in `all` of the file, terminated by the reader */
    size_t               n_text;
} event;

static void copy_text(part p, char *to, size_t room)
{
    size_t n = (size_t)(p.end - p.at);

    assert_true(n < room);
    memcpy(to, p.at, n);
    to[n] = '\0';
}

static double as_f64(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static float as_f32(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float    x;

    memcpy(&x, &low, sizeof(x));
    return x;
}

static void read_shape(part p, event *e)
{
    field f, size;

    e->has_shape = true;
    while (take_field(&p, &f)) {
        assert_int_equal(f.number, 2);
        e->dim[e->n_dims] = 0;
        while (take_field(&f.data, &size))
            e->dim[e->n_dims] = (int64_t)size.value;
        e->n_dims++;
    }
}

static void read_tensor(part p, event *e)
{
    field f;

    while (take_field(&p, &f)) {
        if (f.number == 1) {
            e->dtype = (int)f.value;
        } else if (f.number == 2) {
            read_shape(f.data, e);
        } else if (f.number == 4) {
            e->content = f.data.at;
            e->n_content = (size_t)(f.data.end - f.data.at);
        } else {
            assert_int_equal(f.number, 8);
            e->n_strings++;
            e->n_text = (size_t)(f.data.end - f.data.at);
            e->text = calloc(e->n_text + 1, 1);
            memcpy(e->text, f.data.at, e->n_text);
        }
    }
}

static void read_metadata(part p, event *e)
{
    field f, name;

    while (take_field(&p, &f)) {
        if (f.number == 4) {
            e->class = (int)f.value;
            continue;
        }
        assert_int_equal(f.number, 1);
        assert_true(take_field(&f.data, &name) && name.number == 1);
        copy_text(name.data, e->plugin, sizeof(e->plugin));
    }
}

static void read_value(part p, event *e)
{
    field f;

    while (take_field(&p, &f)) {
        if (f.number == 1) {
            copy_text(f.data, e->tag, sizeof(e->tag));
        } else if (f.number == 2) {
            e->has_simple = true;
            e->simple = as_f32(f.value);
        } else if (f.number == 8) {
            read_tensor(f.data, e);
        } else {
            assert_int_equal(f.number, 9);
            read_metadata(f.data, e);
        }
    }
}

static event read_event(part p)
{
    event e = {0};
    field f, value;

    while (take_field(&p, &f)) {
        if (f.number == 1) {
            e.wall_time = as_f64(f.value);
        } else if (f.number == 2) {
            e.step = (int64_t)f.value;
        } else if (f.number == 3) {
            copy_text(f.data, e.version, sizeof(e.version));
        } else {
            assert_int_equal(f.number, 5);
            assert_true(take_field(&f.data, &value) && value.number == 1);
            read_value(value.data, &e);
            assert_false(take_field(&f.data, &value));
        }
    }
    return e;
}

typedef struct file {
    unsigned char all[1 << 20];
    size_t        bytes;
    int           n;
    event         event[512];
} file;

static void close_events(file *f)
{
    for (int i = 0; i < f->n; i++)
        free(f->event[i].text);
    f->n = 0;
}

/* Reads all records of a file, and checks both checksums of each record. */
static void read_events(const char *path, file *f)
{
    FILE *in = fopen(path, "rb");

    assert_non_null(in);
    f->bytes = fread(f->all, 1, sizeof(f->all), in);
    f->n = 0;
    fclose(in);
    for (size_t at = 0; at < f->bytes;) {
        uint64_t n;

        assert_true(f->bytes - at >= 16);
        n = slow_le(f->all + at, 8);
        assert_int_equal(slow_le(f->all + at + 8, 4), slow_crc(f->all + at, 8));
        assert_true(n <= f->bytes - at - 16);
        assert_int_equal(slow_le(f->all + at + 12 + n, 4), slow_crc(f->all + at + 12, n));
        assert_true(f->n < 512);
        f->event[f->n++] = read_event((part){f->all + at + 12, f->all + at + 12 + n});
        at += 16 + n;
    }
    assert_true(f->n > 0);
    assert_string_equal(f->event[0].version, "brain.Event:2");
    assert_true(f->event[0].wall_time > 1e9);
}

/* Returns the number of event files in a folder, and stores the path of the last. */
static int find_files(const char *folder, char path[512])
{
    DIR *d = opendir(folder);
    int  n = 0;

    if (d == NULL)
        return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') {
            assert_true(strncmp(e->d_name, "events.out.tfevents.", 20) == 0);
            snprintf(path, 512, "%s/%s", folder, e->d_name);
            n++;
        }
    closedir(d);
    return n;
}

static void read_folder(const char *folder, file *f)
{
    char path[512];

    assert_int_equal(find_files(folder, path), 1);
    read_events(path, f);
}

static const event *find(const file *f, const char *tag, int64_t step)
{
    const event *found = NULL;

    for (int i = 0; i < f->n; i++)
        if (strcmp(f->event[i].tag, tag) == 0 && f->event[i].step == step) {
            assert_null(found);
            found = &f->event[i];
        }
    return found;
}

static file read_file, other_file;

/* ---- messages as bytes ---- */

/* EV-2, EV-3 */
static void event_file_begins_with_the_version(void **state)
{
    static const unsigned char payload[] = "\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d"
                                           "brain.Event:2";
    static const unsigned char head[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22};
    static const unsigned char foot[] = {0x86, 0xbf, 0x57, 0x7a};
    ch_bytes_builder           p = {0};
    ch_record_frame            f;

    ch__event_version(&p, 1.0);
    assert_int_equal(p.n, sizeof(payload) - 1);
    assert_memory_equal(p.at, payload, sizeof(payload) - 1);
    f = ch__record_frame(p.at, (size_t)p.n);
    assert_memory_equal(f.head, head, sizeof(head));
    assert_memory_equal(f.foot, foot, sizeof(foot));
    ch__bytes_builder_drop(&p);
    (void)state;
}

/* EV-2, EV-5 */
static void event_of_a_simple_scalar_is_a_tag_and_a_float(void **state)
{
    static const unsigned char payload[] =
        "\x09\0\0\0\0\0\0\0\x40\x10\x05\x2a\x0d\x0a\x0b\x0a\x04"
        "loss\x15\0\0\0\x3f";
    ch_bytes_builder p = {0};

    ch__event_summary(&p, 2.0, 5,
                      &(ch_summary){CH_SUMMARY_SIMPLE, .tag = "loss", .value = 0.5});
    assert_int_equal(p.n, sizeof(payload) - 1);
    assert_memory_equal(p.at, payload, sizeof(payload) - 1);
    ch__bytes_builder_drop(&p);
    (void)state;
}

/* EV-4 */
static void event_of_a_scalar_is_a_tensor_with_a_plugin(void **state)
{
    static const unsigned char payload[] =
        "\x09\0\0\0\0\0\0\0\x40\x10\x05\x2a\x23\x0a\x21\x0a\x04loss"
        "\x42\x0a\x08\x01\x12\x00\x22\x04\x00\x00\x00\x3f"
        "\x4a\x0d\x0a\x09\x0a\x07scalars\x20\x01";
    ch_bytes_builder p = {0};

    ch__event_summary(&p, 2.0, 5,
                      &(ch_summary){CH_SUMMARY_SCALAR, .tag = "loss", .value = 0.5});
    assert_int_equal(p.n, sizeof(payload) - 1);
    assert_memory_equal(p.at, payload, sizeof(payload) - 1);
    ch__bytes_builder_drop(&p);
    (void)state;
}

static void event_texts_and_steps_of_any_size_are_read_back(void **state)
{
    static char text[300000];
    int64_t     step = 1;

    memset(text, 'x', sizeof(text));
    for (size_t n = 0; n < sizeof(text); n = n * 3 + 1, step = (int64_t)((uint64_t)step * 37)) {
        ch_bytes_builder p = {0};
        event            e;

        ch__event_summary(&p, 2.0, step,
                          &(ch_summary){CH_SUMMARY_TEXT, .tag = "t", .text = {text, n}});
        e = read_event((part){(unsigned char *)p.at, (unsigned char *)p.at + p.n});
        assert_int_equal(e.step, step);
        assert_int_equal(e.n_text, n);
        assert_memory_equal(e.text, text, n);
        assert_true(e.dtype == 7 && e.n_strings == 1 && e.class == 2 && e.n_dims == 0);
        assert_string_equal(e.plugin, "text");
        free(e.text);
        ch__bytes_builder_drop(&p);
    }
    (void)state;
}

/* ---- histograms ---- */

static void a_histogram_counts_every_finite_number_once(void **state)
{
    unsigned seed = 9;

    for (int round = 0; round < 200; round++) {
        double       x[100], total = 0;
        int          n = 2 + (int)t_random(&seed, 98), finite = 0;
        ch_histogram h;

        for (int i = 0; i < n; i++) {
            x[i] = t_random(&seed, 30) == 0
                       ? (double)NAN
                       : (t_random(&seed, 1000) - 500.0) * (round % 3 == 0 ? 1e305 : 0.01);
            finite += isfinite(x[i]);
        }
        h = ch__histogram_of(CH_F64, n, x);
        for (int i = 0; i < h.n; i++) {
            total += h.bucket[i][2];
            assert_true(h.bucket[i][0] <= h.bucket[i][1] && isfinite(h.bucket[i][1]));
            assert_true(i == 0 || h.bucket[i][0] == h.bucket[i - 1][1]);
        }
        assert_int_equal((int)total, finite);
    }
    (void)state;
}

static void a_histogram_has_thirty_buckets_from_the_least_to_the_most(void **state)
{
    float        x[61];
    ch_histogram h;

    for (int i = 0; i < 61; i++)
        x[i] = (float)(60 - i);
    h = ch__histogram_of(CH_F32, 61, x);
    assert_int_equal(h.n, 30);
    for (int i = 0; i < 30; i++) {
        assert_float_equal(h.bucket[i][0], 2 * i, 1e-12);
        assert_float_equal(h.bucket[i][1], 2 * i + 2, 1e-12);
        assert_float_equal(h.bucket[i][2], i < 29 ? 2 : 3, 0);
    }
    (void)state;
}

static void histogram_of_equal_numbers_has_one_bucket_and_of_none_no_bucket(void **state)
{
    static const int8_t same[] = {7, 7, 7};
    static const double nothing[] = {(double)NAN, (double)INFINITY};
    static const double tiny[] = {0, 5e-324};
    ch_histogram        h = ch__histogram_of(CH_I8, 3, same);

    assert_int_equal(h.n, 1);
    assert_float_equal(h.bucket[0][0], 6.5, 0);
    assert_float_equal(h.bucket[0][1], 7.5, 0);
    assert_float_equal(h.bucket[0][2], 3, 0);
    assert_int_equal(ch__histogram_of(CH_F64, 2, nothing).n, 0);
    assert_int_equal(ch__histogram_of(CH_F64, 0, nothing).n, 0);
    h = ch__histogram_of(CH_F64, 2, tiny);
    assert_float_equal(h.bucket[0][2], 2, 0);
    (void)state;
}

/* ---- files ---- */

static ch_summary scalar(const char *tag, double value)
{
    return (ch_summary){CH_SUMMARY_SCALAR, .tag = tag, .value = value};
}

/* EV-1, EV-6 */
static void events_are_written_on_flush(void **state)
{
    ch_summary  s = scalar("a", 1);
    ch_events  *e = NULL;
    const char *name;
    char        host[65] = "", want[160];

    t_ok(ch__events_open(t_path("new/folder"), INT32_MAX, &e));
    gethostname(host, sizeof(host) - 1);
    snprintf(want, sizeof(want), ".%s.%ld.0.v2", host, (long)getpid());
    name = strrchr(ch__events_path(e), '/') + 1;
    assert_true(strlen(name) == 20 + 10 + strlen(want));
    assert_string_equal(name + 30, want);

    read_events(ch__events_path(e), &read_file); /* the first record is written at once */
    assert_int_equal(read_file.n, 1);
    for (int i = 0; i < 3; i++)
        t_ok(ch__events_add(e, i, &s));
    read_events(ch__events_path(e), &read_file);
    assert_int_equal(read_file.n, 1);
    t_ok(ch__events_flush(e));
    read_events(ch__events_path(e), &read_file);
    assert_int_equal(read_file.n, 4);
    t_ok(ch__events_close(e));
    t_ok(ch__events_close(NULL));
    (void)state;
}

/* EV-6: above 64 KiB, or after the time limit at the next event */
static void events_are_written_after_64_kib_or_the_time_limit(void **state)
{
    static char text[70000];
    ch_events  *e = NULL, *f = NULL;
    ch_summary  s = scalar("a", 1);

    t_ok(ch__events_open(t_path("much"), INT32_MAX, &e));
    t_ok(ch__events_open(t_path("much"), 0, &f)); /* in the same second: another file */
    assert_string_not_equal(ch__events_path(e), ch__events_path(f));
    t_ok(ch__events_add(e, 1,
                        &(ch_summary){CH_SUMMARY_TEXT, "t", .text = {text, sizeof(text)}}));
    t_ok(ch__events_add(f, 1, &s));
    read_events(ch__events_path(e), &read_file);
    assert_int_equal(read_file.n, 2);
    close_events(&read_file);
    read_events(ch__events_path(f), &read_file);
    assert_int_equal(read_file.n, 2);
    t_ok(ch__events_close(e));
    t_ok(ch__events_close(f));
    (void)state;
}

static ch_status try_events(void)
{
    ch_summary s = scalar("a", 1);
    ch_events *e = NULL;
    ch_status  rc = ch__events_open(t_path("try/this"), 0, &e);

    if (rc != CH_OK)
        return rc;
    rc = ch__events_add(e, 1, &s);
    if (rc != CH_OK) {
        assert_int_not_equal(ch__events_add(e, 2, &s), CH_OK); /* the error is sticky */
        assert_non_null(strstr(ch_error_message(), "try/this"));
    }
    return rc == CH_OK ? ch__events_close(e)
                       : (assert_int_equal(ch__events_close(e), CH_OK), rc);
}

static void events_report_errors_and_leak_nothing(void **state)
{
    int64_t   live = ch__mem_live();
    ch_status rc;

    rc = CH_UNIMPLEMENTED;
    for (int n = 1; rc != CH_OK; n++) {
        ch__mem_fail_at(n);
        rc = try_events();
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
    }
    rc = CH_UNIMPLEMENTED;
    for (int n = 3; rc != CH_OK; n++) { /* from 3: errors of mkdir may be ignored */
        ch__file_fail_at(n, EIO);
        rc = try_events();
        ch__file_fail_at(0, 0);
        assert_int_equal(ch__mem_live(), live);
        assert_true(n < 100);
    }
    ch__file_limit_io(5);
    t_ok(try_events());
    ch__file_limit_io(0);
    (void)state;
}

/* ---- the callback ---- */

static ch_model *new_model(void)
{
    ch_model *m = NULL;

    t_ok(ch_model_new(
        NULL, ch_layer_sequential("net", 1, (ch_layer *[]){ch_layer_dense(3, NULL)}),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 2)}}}, &m));
    return m;
}

static void step_of(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    ch_step_out(s, "twice", ch_add(x, x));
}

/* Returns a function that has run once. */
static ch_function *ran(void)
{
    ch_function *f = t_function(step_of, NULL);
    ch_tensor   *x = t_noise(ch_shape_of(2, 2), 1);
    ch_tuple    *in = t_tuple(1, &x), *out = NULL;

    t_ok(ch_strategy_run(NULL, f, in, &out));
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    return f;
}

static float scalar_of(const file *f, const char *tag, int64_t step)
{
    const event *e = find(f, tag, step);

    if (e == NULL)
        fail_msg("there is no %s at %d", tag, (int)step);
    assert_string_equal(e->plugin, "scalars");
    assert_true(e->dtype == 1 && e->class == 1 && e->has_shape && e->n_dims == 0);
    assert_int_equal(e->n_content, 4);
    return as_f32(slow_le(e->content, 4));
}

/* Runs two epochs of two steps. */
static void train(ch_callback *c, ch_training *t)
{
    t_begin(c, t);
    for (t->epoch = 0; t->epoch < 2; t->epoch++) {
        for (int k = 0; k < 2; k++) {
            t->step++;
            t_log(t, "loss", 1.0 / (double)t->step);
            t_log(t, "accuracy", 0.125 * (double)t->step);
            t_ok(t_tell(c, t, CH_ON_STEP));
        }
        t_log(t, "val_loss", 10 + t->epoch);
        t_ok(t_tell(c, t, CH_ON_EPOCH_END));
        ch__logs_drop(&t->logs);
    }
    t_end(c, t);
}

static void tensorboard_scalars_have_the_tags_of_keras(void **state)
{
    const char   *top = t_path("run");
    ch_callback  *c = NULL;
    ch_optimizer *o = NULL;
    ch_training   t = {0};

    t_ok(ch_optimizer_sgd(0.25, NULL, NULL, &o));
    t.optimizer = o;
    t_ok(ch_callback_tensorboard(
        top, &(ch_callback_tensorboard_options){.every_steps = 2, .graph = CH_OFF}, &c));
    train(c, &t);
    ch_callback_unref(c);
    read_folder(t_path("run/train"), &read_file);
    assert_int_equal(read_file.n, 1 + 2 * 2 + 2 * 3);
    for (int i = 0; i < 2; i++) {
        double step = 2 * (i + 1);

        assert_float_equal(scalar_of(&read_file, "epoch_loss", i), 1 / step, 0);
        assert_float_equal(scalar_of(&read_file, "epoch_accuracy", i), step / 8, 0);
        assert_float_equal(scalar_of(&read_file, "epoch_learning_rate", i), 0.25, 0);
        assert_float_equal(scalar_of(&read_file, "batch_loss", 2 * (i + 1)), 1 / step, 0);
        assert_float_equal(scalar_of(&read_file, "batch_accuracy", 2 * (i + 1)), step / 8, 0);
    }
    read_folder(t_path("run/validation"), &other_file);
    assert_int_equal(other_file.n, 1 + 2);
    assert_float_equal(scalar_of(&other_file, "epoch_loss", 0), 10, 0);
    assert_float_equal(scalar_of(&other_file, "epoch_loss", 1), 11, 0);
    ch_optimizer_unref(o);
    (void)state;
}

static void tensorboard_writes_new_files_for_each_training(void **state)
{
    const char  *top = t_path("again");
    char         path[512];
    ch_callback *c = NULL;
    ch_training  t = {0};

    for (int i = 0; i < 2; i++) {
        t_ok(ch_callback_tensorboard(top, &(ch_callback_tensorboard_options){.graph = CH_OFF},
                                     &c));
        train(c, &t);
        if (i == 1)
            train(c, &t);
        ch_callback_unref(c);
    }
    assert_int_equal(find_files(t_path("again/train"), path), 3);
    assert_int_equal(find_files(t_path("again/validation"), path), 3);
    read_events(path, &read_file);
    assert_int_equal(read_file.n, 1 + 2);
    (void)state;
}

static void tensorboard_writes_the_texts_in_each_training(void **state)
{
    char         path[512];
    ch_callback *c = NULL;
    ch_model    *m = new_model();
    ch_training  t = {.model = m};

    t_ok(ch_callback_tensorboard(t_path("both"), NULL, &c));
    for (int i = 0; i < 2; i++) {
        train(c, &t);
        assert_int_equal(find_files(t_path("both/train"), path), 1);
        read_events(path, &read_file);
        assert_non_null(find(&read_file, "model", 0));
        assert_null(find(&read_file, "model", 1));
        close_events(&read_file);
        assert_int_equal(unlink(path), 0);
    }
    ch_callback_unref(c);
    ch_model_unref(m);
    (void)state;
}

static void tensorboard_writes_an_epoch_when_it_ends(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {0};

    t_ok(ch_callback_tensorboard(t_path("live"),
                                 &(ch_callback_tensorboard_options){.graph = CH_OFF}, &c));
    t_begin(c, &t);
    t_log(&t, "loss", 1);
    t_log(&t, "val_loss", 2);
    t_ok(t_tell(c, &t, CH_ON_EPOCH_END));
    read_folder(t_path("live/train"), &read_file);
    assert_float_equal(scalar_of(&read_file, "epoch_loss", 0), 1, 0);
    read_folder(t_path("live/validation"), &read_file);
    assert_float_equal(scalar_of(&read_file, "epoch_loss", 0), 2, 0);
    t_end(c, &t);
    ch_callback_unref(c);
    (void)state;
}

/* The first step is written at once, with all of its numbers; further steps once a second, or
 * when a validation begins. */
static void tensorboard_writes_a_step_before_its_epoch_ends(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {.step = 1};

    t_ok(ch_callback_tensorboard(
        t_path("steps"), &(ch_callback_tensorboard_options){.every_steps = 1, .graph = CH_OFF},
        &c));
    t_begin(c, &t);
    for (t.step = 1; t.step <= 2; t.step++) {
        t_log(&t, "loss", 1);
        t_log(&t, "accuracy", 0.5);
        t_ok(t_tell(c, &t, CH_ON_STEP));
        if (t.step == 2)
            t_ok(t_tell(c, &t, CH_ON_VALIDATION_BEGIN));
        read_folder(t_path("steps/train"), &read_file);
        assert_float_equal(scalar_of(&read_file, "batch_loss", t.step), 1, 0);
        assert_float_equal(scalar_of(&read_file, "batch_accuracy", t.step), 0.5, 0);
    }
    t_end(c, &t);
    ch_callback_unref(c);
    (void)state;
}

static void tensorboard_histograms_are_of_the_variables_of_the_model(void **state)
{
    ch_callback *c = NULL;
    ch_model    *m = new_model();
    ch_training  t = {.model = m};
    const event *e;

    t_ok(ch_callback_tensorboard(
        t_path("histograms"),
        &(ch_callback_tensorboard_options){.histograms = 2, .graph = CH_OFF}, &c));
    train(c, &t);
    read_folder(t_path("histograms/train"), &read_file);
    e = find(&read_file, "net/dense/kernel/histogram", 0);
    assert_non_null(e);
    assert_string_equal(e->plugin, "histograms");
    assert_true(e->dtype == 2 && e->class == 2 && e->n_dims == 2);
    assert_int_equal(e->dim[0], 30);
    assert_int_equal(e->dim[1], 3);
    assert_int_equal(e->n_content, 30 * 3 * 8);
    double total = 0;
    for (int i = 0; i < 30; i++)
        total += as_f64(slow_le(e->content + 24 * i + 16, 8));
    assert_float_equal(total, 6, 0);
    e = find(&read_file, "net/dense/bias/histogram", 0);
    assert_non_null(e);
    assert_int_equal(e->dim[0], 1);
    assert_float_equal(as_f64(slow_le(e->content, 8)), -0.5, 0);
    assert_float_equal(as_f64(slow_le(e->content + 16, 8)), 3, 0);
    assert_null(find(&read_file, "net/dense/kernel/histogram", 1));
    ch_callback_unref(c);
    ch_model_unref(m);
    (void)state;
}

static void tensorboard_writes_the_model_and_its_step_as_text(void **state)
{
    ch_callback *c = NULL;
    ch_model    *m = new_model();
    ch_function *f = ran(), *fresh = t_function(step_of, NULL);
    ch_training  t = {.model = m, .function = f};

    t_ok(ch_callback_tensorboard(t_path("texts"), NULL, &c));
    train(c, &t);
    ch_callback_unref(c);
    read_folder(t_path("texts/train"), &read_file);
    assert_non_null(find(&read_file, "model", 0));
    assert_true(strncmp(find(&read_file, "model", 0)->text, "    Layer (type) ", 17) == 0);
    assert_non_null(strstr(find(&read_file, "model", 0)->text, "\n      dense (dense)  "));
    assert_non_null(find(&read_file, "step", 0));
    assert_non_null(strstr(find(&read_file, "step", 0)->text, "\n      %1 = add %0 %0"));
    assert_null(find(&read_file, "model", 1));
    close_events(&read_file);

    t.function = fresh; /* a function that has not run */
    t_ok(ch_callback_tensorboard(t_path("fresh"), NULL, &c));
    train(c, &t);
    ch_callback_unref(c);
    read_folder(t_path("fresh/train"), &read_file);
    assert_non_null(find(&read_file, "model", 0));
    assert_null(find(&read_file, "step", 0));
    close_events(&read_file);
    ch_function_unref(f);
    ch_function_unref(fresh);
    ch_model_unref(m);
    (void)state;
}

static void tensorboard_text_is_written_at_once(void **state)
{
    ch_callback *c = NULL, *other = NULL;

    t_ok(ch_callback_tensorboard(t_path("notes"), NULL, &c));
    t_ok(ch_callback_tensorboard_text(c, "notes", 7, "**bold** \xc3\xa9"));
    read_folder(t_path("notes/train"), &read_file);
    assert_non_null(find(&read_file, "notes", 7));
    assert_string_equal(find(&read_file, "notes", 7)->text, "**bold** \xc3\xa9");
    close_events(&read_file);
    t_refused(ch_callback_tensorboard_text(c, NULL, 0, ""), CH_INVALID_ARGUMENT, "tag", "NULL");
    t_refused(ch_callback_tensorboard_text(c, "a", 0, NULL), CH_INVALID_ARGUMENT, "text",
              "NULL");
    t_refused(ch_callback_tensorboard_text(NULL, "a", 0, ""), CH_INVALID_ARGUMENT,
              "ch_callback_tensorboard", "");
    t_ok(ch_callback_time_limit(1, &other));
    t_refused(ch_callback_tensorboard_text(other, "a", 0, ""), CH_INVALID_ARGUMENT,
              "ch_callback_tensorboard", "");
    ch_callback_unref(other);
    ch_callback_unref(c);
    (void)state;
}

static void tensorboard_rejects_invalid_options(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {0};
    FILE        *f = fopen(t_path("taken"), "w");

    fclose(f);
    t_refused(ch_callback_tensorboard("", NULL, &c), CH_INVALID_ARGUMENT, "directory", "empty");
    t_refused(ch_callback_tensorboard(NULL, NULL, &c), CH_INVALID_ARGUMENT, "directory",
              "empty");
    t_refused(
        ch_callback_tensorboard("x", &(ch_callback_tensorboard_options){.histograms = -1}, &c),
        CH_INVALID_ARGUMENT, "histograms", "-1");
    t_ok(ch_callback_tensorboard(t_path("taken"), NULL, &c));
    t_refused(t_tell(c, &t, CH_ON_BEGIN), CH_NOT_FOUND, "callback tensorboard", "taken/train");
    t.is_evaluation = true;
    for (unsigned e = CH_ON_BEGIN; e <= CH_ON_END; e <<= 1)
        t_ok(t_tell(c, &t, (ch_event)e));
    ch_callback_unref(c);
    (void)state;
}

/* Runs a training in which an allocation or a file operation fails. */
static ch_status try_training(ch_model *m)
{
    ch_callback *c = NULL;
    ch_training  t = {.model = m};
    ch_status    rc, end;

    rc = ch_callback_tensorboard(t_path("fails"),
                                 &(ch_callback_tensorboard_options){.histograms = 1}, &c);
    if (rc != CH_OK)
        return rc;
    rc = t_tell(c, &t, CH_ON_BEGIN);
    if (rc == CH_OK)
        rc = ch__logs_set(&t.logs, "loss", 1);
    if (rc == CH_OK)
        rc = ch__logs_set(&t.logs, "val_loss", 1);
    if (rc == CH_OK)
        rc = t_tell(c, &t, CH_ON_EPOCH_END);
    end = t_tell(c, &t, CH_ON_END);
    ch__logs_drop(&t.logs);
    ch_callback_unref(c);
    return rc != CH_OK ? rc : end;
}

static void tensorboard_leaks_nothing_when_out_of_memory(void **state)
{
    ch_model *m = new_model();
    int64_t   live;
    ch_status rc = CH_UNIMPLEMENTED;

    t_ok(try_training(m));
    live = ch__mem_live();
    for (int n = 1; rc != CH_OK; n++) {
        ch__mem_fail_at(n);
        rc = try_training(m);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        assert_int_equal(ch__mem_live(), live);
    }
    ch_model_unref(m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(event_file_begins_with_the_version),
        cmocka_unit_test(event_of_a_simple_scalar_is_a_tag_and_a_float),
        cmocka_unit_test(event_of_a_scalar_is_a_tensor_with_a_plugin),
        cmocka_unit_test(event_texts_and_steps_of_any_size_are_read_back),
        cmocka_unit_test(a_histogram_counts_every_finite_number_once),
        cmocka_unit_test(a_histogram_has_thirty_buckets_from_the_least_to_the_most),
        cmocka_unit_test(histogram_of_equal_numbers_has_one_bucket_and_of_none_no_bucket),
        cmocka_unit_test(events_are_written_on_flush),
        cmocka_unit_test(events_are_written_after_64_kib_or_the_time_limit),
        cmocka_unit_test(events_report_errors_and_leak_nothing),
        cmocka_unit_test(tensorboard_scalars_have_the_tags_of_keras),
        cmocka_unit_test(tensorboard_writes_new_files_for_each_training),
        cmocka_unit_test(tensorboard_writes_the_texts_in_each_training),
        cmocka_unit_test(tensorboard_writes_an_epoch_when_it_ends),
        cmocka_unit_test(tensorboard_writes_a_step_before_its_epoch_ends),
        cmocka_unit_test(tensorboard_histograms_are_of_the_variables_of_the_model),
        cmocka_unit_test(tensorboard_writes_the_model_and_its_step_as_text),
        cmocka_unit_test(tensorboard_text_is_written_at_once),
        cmocka_unit_test(tensorboard_rejects_invalid_options),
        cmocka_unit_test(tensorboard_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests_name("tensorboard", tests, t_folder_make, t_folder_remove);
}
