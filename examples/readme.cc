// examples/readme.cc -- the same library from C++.   SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include "cohort/cohort.h"

template <auto unref> struct release {
    template <class T> void operator()(T *p) const
    {
        unref(p);
    }
};
using tensor = std::unique_ptr<ch_tensor, release<ch_tensor_unref>>;
using tuple = std::unique_ptr<ch_tuple, release<ch_tuple_unref>>;
using function = std::unique_ptr<ch_function, release<ch_function_unref>>;

int main()
{
    const float  data[] = {1, 2, 3};
    ch_tensor   *x = nullptr;
    ch_tuple    *in = nullptr, *out = nullptr;
    ch_function *squares = nullptr;
    const auto   step = [](ch_step *s, void *) {
        ch_step_out(s, "y", ch_square(ch_step_in(s, 0)));
    };
    char       text[256];
    const bool works = ch_tensor_copy_of(CH_F32, ch_shape_of(3), data, &x) == CH_OK &&
                       ch_tuple_of(1, &x, &in) == CH_OK &&
                       ch_function_new("squares", step, nullptr, &squares) == CH_OK &&
                       ch_strategy_run(nullptr, squares, in, &out) == CH_OK;
    const tensor   keep_x(x);
    const tuple    keep_in(in), keep_out(out);
    const function keep_squares(squares);

    ch_tuple_print(out, text, sizeof(text));
    std::puts(works ? text : ch_error_message()); // (\n  y: tensor(f32 (3,) [1 4 9])\n)
    return works ? 0 : 1;
}
