<?php
// Orders that are placed once: the order and the record of its key commit together.

declare(strict_types=1);

// What hapax.start refuses, by SQLSTATE: the status, and the word with which its message begins.
const REFUSALS = [
    'HX409' => [409, 'in-flight'],
    'HX410' => [410, 'key-expired'],
    'HX418' => [409, 'answer-not-kept'],
    'HX419' => [409, 'outcome-unknown'],
    'HX422' => [422, 'key-reused'],
];
const ATTEMPTS_MAX = 3;
const WAIT_SECONDS_MAX = 30;

// Places the order, or finds the answer that an earlier request with this key got.
function place(PDO $db, string $user, string $key, string $sent, string $item, ?string $wait): array
{
    $db->beginTransaction();
    $begin = $db->prepare("SELECT * FROM
        hapax.start('shop', ?, 'POST /orders', ?, hapax.fingerprint(CAST(? AS jsonb)), ?)");
    $begin->execute([$user, $key, $sent, $wait]);
    $begun = $begin->fetch();
    if (!$begun['run']) {
        $db->rollBack();
        $headers = json_decode($begun['headers'], true) + ['Idempotent-Replayed' => 'true'];
        // PDO gives a bytea as a stream.
        return [$begun['status'], $headers, stream_get_contents($begun['body'])];
    }
    $db->exec('SAVEPOINT claimed'); // The key stays claimed if the insert fails.
    try {
        $insert = $db->prepare('INSERT INTO orders (item, placed_by) VALUES (?, ?) RETURNING id');
        $insert->execute([$item, $user]);
        $id = $insert->fetchColumn();
        $answer = answer(201, ['id' => $id, 'item' => $item], ['Location' => "/orders/$id"]);
    } catch (PDOException $error) {
        if ($error->getCode() !== '23503') {
            throw $error;
        }
        $db->exec('ROLLBACK TO SAVEPOINT claimed');
        $answer = answer(404, ['error' => 'no such item']);
    }
    [$status, $headers, $body] = $answer;
    $complete = $db->prepare('SELECT hapax.complete(?, ?, ?, CAST(? AS jsonb), CAST(? AS bytea))');
    $values = [$begun['operation_id'], $begun['fence'], $status, json_encode($headers)];
    foreach ($values as $place => $value) {
        $complete->bindValue($place + 1, $value);
    }
    $complete->bindValue(5, $body, PDO::PARAM_LOB); // As bytes: a text could not hold all of them.
    $complete->execute();
    $db->commit();
    return $answer;
}

function place_or_refuse(?string ...$order): array
{
    for ($attempt = 1; ; $attempt++) {
        try {
            return place(connect(), ...$order);
        } catch (PDOException $error) {
            $code = (string) ($error->errorInfo[0] ?? '');
            if (in_array($code, ['40001', '40P01'], true) && $attempt < ATTEMPTS_MAX) {
                continue; // The server rolled it back, and asks for another attempt.
            }
            if (isset(REFUSALS[$code])) {
                [$status, $word] = REFUSALS[$code];
                $headers = $code === 'HX409' ? ['Retry-After' => '1'] : [];
                return answer($status, ['error' => $word], $headers);
            }
            if (str_starts_with($code, '22')) {
                return answer(400, ['error' => 'the key or the body cannot be used']);
            }
            // Nothing was kept, or the reply to COMMIT was lost: the key may be sent again.
            error_log("orders: {$error->getMessage()}");
            return answer(503, ['error' => 'try again']);
        }
    }
}

// A connection for one attempt. When it is dropped, the server rolls back what was not committed.
function connect(): PDO
{
    $url = parse_url(getenv('DATABASE_URL') ?: 'postgresql://orders@127.0.0.1/shop');
    $dsn = sprintf('pgsql:host=%s;port=%d;dbname=%s;connect_timeout=5',
        $url['host'], $url['port'] ?? 5432, ltrim($url['path'], '/'));
    $password = isset($url['pass']) ? rawurldecode($url['pass']) : null;
    $options = [PDO::ATTR_DEFAULT_FETCH_MODE => PDO::FETCH_ASSOC];
    return new PDO($dsn, rawurldecode($url['user'] ?? 'orders'), $password, $options);
}

function respond(): array
{
    if ($_SERVER['REQUEST_METHOD'] !== 'POST' || $_SERVER['REQUEST_URI'] !== '/orders') {
        return answer(404, ['error' => 'POST an order to /orders']);
    }
    // In real life: whoever your authentication says it is, never what the client says.
    $user = $_SERVER['HTTP_X_USER'] ?? '';
    if ($user === '') {
        return answer(401, ['error' => 'who are you?']);
    }
    $key = $_SERVER['HTTP_IDEMPOTENCY_KEY'] ?? '';
    if ($key === '') {
        return answer(400, ['error' => 'send an Idempotency-Key']);
    }
    $sent = file_get_contents('php://input');
    $item = json_decode($sent)->item ?? null;
    if (!is_string($item)) {
        return answer(400, ['error' => 'send {"item": "..."}']);
    }
    $wait = null;
    if (preg_match('/\bwait=(\d{1,4})/', $_SERVER['HTTP_PREFER'] ?? '', $prefer)) {
        $wait = min((int) $prefer[1], WAIT_SECONDS_MAX) . ' seconds';
    }
    return place_or_refuse($user, $key, $sent, $item, $wait);
}

function answer(int $status, array $content, array $headers = []): array
{
    $json = json_encode($content, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE);
    return [$status, ['Content-Type' => 'application/json'] + $headers, $json];
}

[$status, $headers, $body] = respond();
http_response_code($status);
foreach ($headers as $name => $value) {
    header("$name: $value");
}
echo $body;
