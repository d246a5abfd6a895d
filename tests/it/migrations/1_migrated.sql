CREATE TABLE migrated (n int NOT NULL);
