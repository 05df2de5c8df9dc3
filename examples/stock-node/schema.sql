-- The stock, and the role of the service.
CREATE ROLE stock LOGIN;
CREATE TABLE stock (item text PRIMARY KEY, reserved int NOT NULL DEFAULT 0);
GRANT SELECT, INSERT, UPDATE ON stock TO stock;
