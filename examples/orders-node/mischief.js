// Ways to do it wrong, for whoever wants to see what comes of them. Only with ORDERS_MISCHIEF=1.
//
// A request to place an order says in X-Mischief what goes wrong with it. What it leaves open, POST /mischief/end brings to its end.

// Puts itself before the routes of the service, whose own way to place an order it is given.
export function install(app, { insert, join, send, transaction }) {
  // What was left open: called, it ends it.
  const leftOpen = [];
  const kill = () => process.kill(process.pid, 'SIGKILL');
  const ways = {
    // All is done and committed, and nobody lives to say so.
    'joined-then-killed': async (request) => {
      await transaction(async (client) => join(client, request, await insert(client, request)));
      kill();
    },
    // Dies in the middle: the server rolls back.
    'killed-before-commit': async (request) => {
      await transaction(async (client) => {
        await join(client, request, await insert(client, request));
        kill();
        return new Promise(() => {});
      });
    },
    // Forgets to join.
    'not-joined': async (request, response) => send(response, await transaction((client) => insert(client, request))),
    // Answers first and works later: the answer says of something that it is done which is not, and may never be.
    'answered-before-commit': async (request, response) => {
      leftOpen.push(() => transaction(async (client) => join(client, request, await insert(client, request))));
      send(response, { status: 201, headers: {}, body: 'soon' });
    },
  };
  app.use(async (request, response, next) => {
    const way = ways[request.get('x-mischief')];
    return way ? way(request, response) : next();
  });
  app.post('/mischief/end', async (_request, response) => {
    const ended = leftOpen.splice(0);
    for (const end of ended) await end();
    response.send(String(ended.length));
  });
}
