// Mistakes on request, to see their consequences. Only with ORDERS_MISCHIEF=1.
//
// A request to place an order names its mistake in X-Mischief. POST /mischief/end finishes the work that such requests left open.

// Adds itself before the routes of the service, and uses the service's functions to place an order.
export function install(app, { insert, join, send, transaction }) {
  // Functions that finish the work that was left open.
  const leftOpen = [];
  const kill = () => process.kill(process.pid, 'SIGKILL');
  const ways = {
    // Commits everything and dies before it answers.
    'joined-then-killed': async (request) => {
      await transaction(async (client) => join(client, request, await insert(client, request)));
      kill();
    },
    // Dies before the commit: the server rolls back.
    'killed-before-commit': async (request) => {
      await transaction(async (client) => {
        await join(client, request, await insert(client, request));
        kill();
        return new Promise(() => {});
      });
    },
    // Forgets to join.
    'not-joined': async (request, response) => send(response, await transaction((client) => insert(client, request))),
    // Answers before the work is done: the answer claims something that may never happen.
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
