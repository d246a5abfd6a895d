CREATE TABLE todos (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    description text NOT NULL,
    done boolean NOT NULL DEFAULT FALSE
);
