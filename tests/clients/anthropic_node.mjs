// The Anthropic SDK for Node.
import Anthropic from "@anthropic-ai/sdk";
import { CHAT, KEY, URL_, need, run } from "./report.mjs";

const client = new Anthropic({ baseURL: URL_, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "Name a river of Colombia." }];
const tool = {
  name: "weather",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

await run("anthropic-node", "@anthropic-ai/sdk", {
  messages: async () =>
    need((await client.messages.create({ model: CHAT, max_tokens: 16, messages })).content[0].text),
  stream: async () => {
    const message = await client.messages.stream({ model: CHAT, max_tokens: 16, messages }).finalMessage();
    need(message.usage.output_tokens);
  },
  tools: async () => {
    const answer = await client.messages.create({
      model: CHAT, max_tokens: 64, messages, tools: [tool], tool_choice: { type: "any" },
    });
    need(answer.content.at(-1).type === "tool_use");
  },
});
