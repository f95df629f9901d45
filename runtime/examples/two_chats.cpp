// Two chats answered at once, one row of each in every step:
//
//   two_chats MODEL TOKENS FIRST SECOND
//
// FIRST and SECOND are conversations as JSON: {"messages": [{"role": "user", "content": "Hello"}]}.
// Prints the answers, one after the other. SPDX-License-Identifier: Apache-2.0
#include <kt/kt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void need(kt_status st, const kt_err &err) {
    if (st != KT_OK) throw std::runtime_error(std::string(kt_status_name(st)) + ": " + err.message);
}

template <class T, void (*End)(T *)> struct Ender {
    void operator()(T *p) const { End(p); }
};
template <class T, void (*End)(T *)> using Owned = std::unique_ptr<T, Ender<T, End>>;
using Engine = Owned<kt_engine, kt_engine_destroy>;
using Format = Owned<kt_chat_format, kt_chat_format_destroy>;
using Sampler = Owned<kt_sampler, kt_sampler_destroy>;
using Sequence = Owned<kt_sequence, kt_sequence_destroy>;

Engine load(const char *model) {
    kt_model_options options;
    kt_engine *engine;
    kt_err err;
    kt_model_options_init(&options, sizeof options);
    options.model = model;
    options.deterministic = true;
    need(kt_engine_load(&options, &engine, &err), err);
    return Engine(engine);
}

struct Chat {
    Sequence sequence;
    Sampler sampler;
    std::vector<int32_t> ids; // the prompt, then the answer
    size_t fed = 0, prompt = 0;
    bool is_over = false;

    Chat(kt_engine *engine, const kt_chat_format *format, int64_t vocab, const char *conversation,
         size_t most) {
        int32_t *encoded;
        size_t n;
        kt_err err;
        need(kt_chat_encode_json(format, kt_engine_tokenizer(engine), conversation,
                                 std::strlen(conversation), &encoded, &n, &err),
             err);
        ids.assign(encoded, encoded + n);
        kt_free(encoded);
        prompt = n;
        kt_sampling greedy;
        kt_sampling_init(&greedy);
        kt_sampler *s;
        need(kt_sampler_create(&greedy, nullptr, 0, vocab, &s, &err), err);
        sampler.reset(s);
        kt_sequence *q;
        need(kt_sequence_create(engine, (int64_t)(n + most), &q, &err), err);
        sequence.reset(q);
    }

    void choose(const float *logits, const kt_model_info &model, size_t most) {
        int32_t id;
        kt_err err;
        need(kt_sampler_next(sampler.get(), logits, nullptr, &id, &err), err);
        is_over = std::find(model.eos, model.eos + model.n_eos, id) != model.eos + model.n_eos;
        if (!is_over) ids.push_back(id);
        is_over = is_over || ids.size() == prompt + most;
    }
};

// Rows of every chat that is not over: its next token, or a part of its prompt.
void step(kt_engine *engine, const kt_model_info &model, std::vector<Chat> &chats, size_t most) {
    std::vector<int32_t> token, out_row;
    std::vector<kt_span> spans;
    std::vector<Chat *> of_out;
    kt_err err;
    for (Chat &c : chats) {
        if (c.is_over) continue;
        const size_t room = (size_t)model.step_rows / chats.size();
        const size_t rows = std::min(c.ids.size() - c.fed, room);
        spans.push_back({c.sequence.get(), (int64_t)token.size(), (int64_t)rows, false});
        token.insert(token.end(), c.ids.begin() + (long)c.fed,
                     c.ids.begin() + (long)(c.fed + rows));
        c.fed += rows;
        if (c.fed < c.ids.size()) continue; // more of the prompt comes
        of_out.push_back(&c);
        out_row.push_back((int32_t)token.size() - 1);
    }
    std::vector<float> logits(of_out.size() * (size_t)model.vocab);
    kt_batch batch = kt_batch();
    batch.rows = (int64_t)token.size();
    batch.token = token.data();
    batch.n_spans = (int)spans.size();
    batch.spans = spans.data();
    batch.n_out = (int64_t)out_row.size();
    batch.out_row = out_row.data();
    need(kt_engine_step(engine, &batch, logits.data(), nullptr, &err), err);
    for (size_t i = 0; i < of_out.size(); i++)
        of_out[i]->choose(logits.data() + i * (size_t)model.vocab, model, most);
}

void print(const Chat &c, const kt_engine *engine) {
    char *text;
    size_t size;
    kt_err err;
    need(kt_tokenizer_decode(kt_engine_tokenizer(engine), c.ids.data() + c.prompt,
                             c.ids.size() - c.prompt, true, &text, &size, &err),
         err);
    std::printf("%s\n", text);
    kt_free(text);
}

} // namespace

int main(int argc, char **argv) try {
    if (argc != 5 || std::atoll(argv[2]) < 1 || kt_abi_version() != KT_ABI_VERSION) {
        std::fprintf(stderr, "usage: two_chats MODEL TOKENS FIRST SECOND\n");
        return 2;
    }
    const size_t most = (size_t)std::atoll(argv[2]);
    kt_chat_format *format;
    kt_model_info model = kt_model_info();
    kt_err err;
    Engine engine = load(argv[1]);
    model.size = sizeof model;
    need(kt_engine_model(engine.get(), &model, &err), err);
    need(kt_chat_format_open(argv[1], nullptr, &format, &err), err);
    const Format owned(format);
    std::vector<Chat> chats;
    for (int i = 3; i < argc; i++)
        chats.emplace_back(engine.get(), format, model.vocab, argv[i], most);
    while (std::any_of(chats.begin(), chats.end(), [](const Chat &c) { return !c.is_over; }))
        step(engine.get(), model, chats, most);
    for (const Chat &c : chats) print(c, engine.get());
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
