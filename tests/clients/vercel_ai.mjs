// The Vercel AI SDK, by its provider for OpenAI (the Responses API by default) and the one for compatible servers.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, CHAT, EMBEDDING, KEY, need, run } from "./report.mjs";

const compatible = createOpenAICompatible({
  name: "esclusa", baseURL: BASE, apiKey: KEY, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: BASE, apiKey: KEY });
const prompt = "Name a river of Colombia.", maxOutputTokens = 48;
const weather = tool({
  description: "Get the weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});

await run("vercel-ai", "ai", {
  generateText: async () => need((await generateText({ model: compatible(CHAT), prompt, maxOutputTokens })).text),
  streamText: async () => {
    let text = "";
    for await (const part of streamText({ model: compatible(CHAT), prompt, maxOutputTokens }).textStream) text += part;
    need(text);
  },
  generateObject: async () => {
    const schema = z.object({ name: z.string() });
    need((await generateObject({ model: compatible(CHAT), schema, prompt, maxOutputTokens })).object);
  },
  tools: async () => {
    const answer = await generateText({
      model: compatible(CHAT), prompt: "Weather in Lima?", tools: { weather }, toolChoice: "required",
      maxOutputTokens: 96,
    });
    need(answer.toolCalls.length);
  },
  "openai('model') (Responses)": async () =>
    need((await generateText({ model: openai(CHAT), prompt, maxOutputTokens })).text),
  "openai('model') stream": async () => {
    let text = "";
    for await (const part of streamText({ model: openai(CHAT), prompt, maxOutputTokens }).textStream) text += part;
    need(text);
  },
  "openai.chat": async () => need((await generateText({ model: openai.chat(CHAT), prompt, maxOutputTokens })).text),
  embed: async () => {
    const model = compatible.textEmbeddingModel(EMBEDDING);
    need((await embed({ model, value: "a river" })).embedding.length === 384);
  },
});
