// The OpenAI SDK for Node.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { BASE, CHAT, EMBEDDING, KEY, need, run } from "./report.mjs";

const client = new OpenAI({ baseURL: BASE, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "Name a river of Colombia." }];
const tool = {
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

await run("openai-node", "openai", {
  chat: async () =>
    need((await client.chat.completions.create({ model: CHAT, messages, max_tokens: 16 })).choices[0].message.content),
  stream: async () => {
    const stream = client.chat.completions.stream({ model: CHAT, messages, max_tokens: 16 });
    need(await stream.finalContent());
  },
  "parse (zod)": async () => {
    const format = zodResponseFormat(z.object({ name: z.string() }), "river");
    const answer = await client.chat.completions.parse({
      model: CHAT, messages, response_format: format, max_tokens: 48,
    });
    need(answer.choices[0].message.parsed.name !== undefined);
  },
  tools: async () => {
    const answer = await client.chat.completions.create({
      model: CHAT, messages, tools: [tool], tool_choice: "required", parallel_tool_calls: false, max_tokens: 64,
    });
    need(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments).city !== undefined);
  },
  responses: async () =>
    need((await client.responses.create({ model: CHAT, input: "Name a river.", max_output_tokens: 16 })).output_text),
  "responses stream": async () => {
    let last;
    const stream = await client.responses.create({
      model: CHAT, input: "Name a river.", max_output_tokens: 16, stream: true,
    });
    for await (const event of stream) last = event.type;
    need(["response.completed", "response.incomplete"].includes(last), last);
  },
  embeddings: async () =>
    need((await client.embeddings.create({ model: EMBEDDING, input: ["a"] })).data[0].embedding.length === 384),
  models: async () => {
    const found = [];
    for await (const model of client.models.list()) found.push(model.id);
    need(found.includes(CHAT));
  },
});
